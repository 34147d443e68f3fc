"""What rank 0 tells the other ranks, and what they answer: MessagePack, so nothing that is received is ever run.

rank 0 ──Begin, Build, Train, Gather, Load, Keep, BeginCycle, Move, End──▶ rank 1 … n-1
rank 0 ◀──Reply, except to Begin, Gather, BeginCycle, End──────────────── rank 1 … n-1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import msgpack

from services.learner.passes import ScoredAnswer
from services.learner.tally import TallyParts
from services.samples import VersionSpan


@dataclass(frozen=True, slots=True)
class Begin:
    """What is trained, and with which settings (JSON): a rank that has none of its own takes these."""

    config: str
    steps_per_version: int
    keeps_caches: bool
    refused: str
    """Why there will be nothing to do; empty: the ranks agree."""


@dataclass(frozen=True, slots=True)
class Build:
    """Load the initial model and keep this rank's part of it: in turn `turn` of `turns`."""

    turn: int
    turns: int


@dataclass(frozen=True, slots=True)
class Train:
    """One step: the passes of this rank, `num_tokens` answer tokens in those of all ranks."""

    step: int
    rate: float
    num_tokens: int
    passes: Sequence[Sequence[ScoredAnswer]]


@dataclass(frozen=True, slots=True)
class Gather:
    """Send this rank's part of one tensor."""

    part: str
    name: str


@dataclass(frozen=True, slots=True)
class Load:
    """Read this rank's part of a checkpoint, without using it yet."""

    folder: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Use what was read, or, when some rank could not read its part, forget it."""

    use: bool


@dataclass(frozen=True, slots=True)
class BeginCycle:
    """The current weights are those that a cycle begins with."""


@dataclass(frozen=True, slots=True)
class Move:
    """Leave the device, or come back to it."""

    home: bool


@dataclass(frozen=True, slots=True)
class End:
    """There is nothing more to do."""


Command = Begin | Build | Train | Gather | Load | Keep | BeginCycle | Move | End
_COMMANDS = {kind.__name__: kind for kind in (Begin, Build, Train, Gather, Load, Keep, BeginCycle, Move, End)}


@dataclass(frozen=True, slots=True)
class Reply:
    """How a command went on one rank: an error's class and text, or nothing."""

    error: str = ""
    text: str = ""
    updates: Sequence[Update] = ()
    """After a step, one an epoch."""


@dataclass(frozen=True, slots=True)
class Update:
    """One rank's part of one optimizer update; the norm is that of the whole gradient."""

    parts: TallyParts
    grad_norm: float
    seconds: Mapping[str, float]


def pack_command(command: Command) -> bytes:
    """For `unpack_command`."""
    return _pack([type(command).__name__, *(getattr(command, part.name) for part in fields(command))])


def unpack_command(data: bytes) -> Command:
    """What `pack_command` packed."""
    name, *values = msgpack.unpackb(data, use_list=False)
    if name == Train.__name__:
        *values, passes = values
        values = [*values, [[_answer(*answer) for answer in answers] for answers in passes]]
    command: Command = _COMMANDS[name](*values)
    return command


def pack_reply(reply: Reply) -> bytes:
    """For `unpack_reply`."""
    return _pack([getattr(reply, part.name) for part in fields(reply)])


def unpack_reply(data: bytes) -> Reply:
    """What `pack_reply` packed."""
    error, text, updates = msgpack.unpackb(data, use_list=False)
    return Reply(error, text, [Update(TallyParts(*parts), grad_norm, seconds) for parts, grad_norm, seconds in updates])


def pack_facts(facts: Mapping[str, str]) -> bytes:
    """For `unpack_facts`."""
    return _pack(dict(facts))


def unpack_facts(data: bytes) -> dict[str, str]:
    """What `pack_facts` packed."""
    return {str(name): str(value) for name, value in msgpack.unpackb(data).items()}


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, default=_fields)
    return packed


def _fields(value: object) -> list[object]:
    assert isinstance(value, ScoredAnswer | VersionSpan | Update | TallyParts)
    return [getattr(value, part.name) for part in fields(value)]


def _answer(
    group: int,
    prompt: tuple[int, ...],
    tokens: tuple[int, ...],
    logprobs: tuple[float, ...],
    advantage: float,
    share: float,
    spans: Sequence[tuple[int, int]],
) -> ScoredAnswer:
    return ScoredAnswer(group, prompt, tokens, logprobs, advantage, share, tuple(VersionSpan(*span) for span in spans))
