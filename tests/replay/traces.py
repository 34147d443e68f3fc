"""What each core says at every position of a recording, as digests: two processes that print the same heard the same, byte for byte.

python -m tests.replay.traces FOLDER      one JSON object: core -> a digest for each position
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from bus.codec import encode
from bus.core import Core, Deadline, Request
from bus.entry import Entry
from bus.events import Event, SampleDropped
from bus.host import own
from bus.recording import Recording
from bus.seal import sealed
from bus.snapshot import freeze
from policies.registry import POLICIES, create
from services.controller.core import ControllerCore
from services.policy.core import PolicyCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore

FREEZE_EVERY = 25
SHADOWS = "policy:"


class OrderOfASet:
    """A core that must not be: it goes through a set."""

    source = "order of a set"

    def __init__(self) -> None:
        self._sources: list[str] = []

    def apply(self, entry: Entry) -> None:
        self._sources.append(entry.source)

    def decide(self) -> Event | None:
        return SampleDropped(sample=1, reason="stale", detail=" ".join({*self._sources}))

    def outstanding(self) -> Sequence[Request]:
        return ()

    def deadlines(self) -> Sequence[Deadline]:
        return ()


def active(name: str) -> Core:
    return PolicyCore(create(name, {}))


def shadow(name: str) -> Core:
    return PolicyCore(create(name, {}), "shadow")


CORES: Mapping[str, Callable[[], Core]] = {
    "trainer": TrainerCore,
    "rollouter": RollouterCore,
    "controller": ControllerCore,
    **{name: lambda name=name: active(name) for name in POLICIES},  # type: ignore[misc]
    **{f"shadow of {name}": lambda name=name: shadow(name) for name in POLICIES},  # type: ignore[misc]
}


def trace(core: Core, entries: Sequence[Entry]) -> Iterator[bytes]:
    """For each entry: what the core decides, what is outstanding, which deadlines are armed and, now and then, its whole state.

    Recorded wins, as in every recovery; what a shadow decides is in no golden recording, so that is applied as it decides it.
    The core runs under a seal: SealBroken when it looks at anything else than the log.
    """
    recorded: dict[int, list[Event]] = {}
    for entry in entries:
        if entry.derived and entry.source == core.source:
            recorded.setdefault(entry.cause, []).append(entry.event)
    for entry in entries:
        if not (entry.derived and entry.source == core.source):
            _apply(core, entry)
        decision, said = _ask(core)
        answers = [decision] if decision is not None and core.source.startswith(SHADOWS) else recorded.get(entry.position, [])
        for answer in answers:
            _apply(core, own(core, answer, entry.position))
            said += _ask(core)[1]
        whole = entry.position % FREEZE_EVERY == 0 or entry is entries[-1]
        yield said + (freeze(core) if whole else b"")


def _apply(core: Core, entry: Entry) -> None:
    with sealed():
        core.apply(entry)


def _ask(core: Core) -> tuple[Event | None, bytes]:
    with sealed():
        event, outstanding, deadlines = core.decide(), core.outstanding(), core.deadlines()
    decision = b"" if event is None else event.kind.encode() + encode(event)
    return event, decision + repr((list(outstanding), list(deadlines))).encode()


def digests(core: Core, entries: Sequence[Entry]) -> list[str]:
    """One for each entry."""
    return [blake2b(said, digest_size=6).hexdigest() for said in trace(core, entries)]


def main(folder: Path) -> None:
    """Prints the digests of every core and, so that a difference is known to show, of one that goes through a set."""
    with Recording.open(folder) as recording:
        entries = list(recording.entries())
    made = {**{name: make() for name, make in CORES.items()}, OrderOfASet.source: OrderOfASet()}
    json.dump({name: digests(core, entries) for name, core in made.items()}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
