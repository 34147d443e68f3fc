"""The seam between a replica and the inference engine it runs.

    replica ──submit──▶ engine ──poll──▶ outputs (every submitted id has exactly one)
            ──pause/sleep/wake/load_weights──▶

An engine takes requests continuously. It never drops one: whatever happens to a request, `poll` returns one output for its id.

    asleep ──wake──▶ paused ──open──▶ open ──freeze──▶ frozen
       ▲               │  ▲             │ ▲               │
       └────sleep──────┘  ├────pause────┘ └─────open──────┤
                          └─────────────pause─────────────┘

    asleep: no cache, no weights
    paused: nothing is in flight or admitted; weights may be loaded, and must be after each wake
    open:   requests are admitted
    frozen: what is in flight stays as it is, nothing is admitted; weights may be loaded

What was frozen goes on over what the old weights have cached of its tokens; each further token is of the weights that draw it, and its
log-probability is what they gave it, over that cache. Nothing that starts later uses anything that older weights have cached (C-28).

Asking for the state the engine is in does nothing; any other call in the wrong state raises EngineError. Once the engine has failed, every
call but `stats` and `close` raises EngineError; `poll` first hands out the outputs that are left, `error` for whatever was in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from bus.errors import ConfigError, EngineError
from services.samples import VersionSpan

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Outcome = Literal["stop", "length", "aborted", "refused", "error"]
EngineState = Literal["asleep", "paused", "open", "frozen"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Frozen: an engine that needs other numbers makes a copy (C-24). Raises ConfigError out of range."""

    temperature: float = 1.0
    """0 takes the most likely token, whose log-probability is then 0."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    stop_token_ids: tuple[int, ...] = ()
    """Any of these ends the answer and is its last token."""

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and 0 < self.top_p <= 1 and self.top_k >= 0):
            raise ConfigError(
                f"sampling with temperature {self.temperature}, top_p {self.top_p}, top_k {self.top_k}: "
                "temperature must be at least 0, top_p in (0, 1], top_k at least 0 (0 for the whole vocabulary)"
            )


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue `prompt_tokens + prefix_tokens` by at most `max_new_tokens` tokens.

    `prefix_tokens` are tokens of the answer that an earlier attempt generated; they count towards the answer, not towards the output.
    `max_new_tokens` is what is left of the budget (>= 1). With equal weights an answer is the same whether it was generated in one go or
    continued after aborts, if the engine's numbers allow: the n-th token of an answer is drawn with the n-th number of `seed`.
    """

    request: str
    prompt_tokens: tuple[int, ...]
    prefix_tokens: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerateOutput:
    """The one outcome of a request: the tokens it generated, without prompt and prefix.

    `logprobs` has the length of `tokens`, and `spans` add up to it; zero tokens are legal. A log-probability is the natural log of the
    probability under the distribution that was sampled from: after temperature, top-k and top-p, renormalised.
    `stop`: ended by a stop token; `length`: `max_new_tokens` are there; `aborted`: as far as it got; `refused`: the engine was not open;
    `error`: it could not be served, see `error`, no tokens.
    """

    request: str
    outcome: Outcome
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    spans: tuple[VersionSpan, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine is doing now: requests running and queued, tokens generated since it started."""

    running: int
    queued: int
    generated_tokens: int
    state: EngineState
    version: int | None = None
    """Version of the weights that were loaded last and completely."""
    extra: Mapping[str, float] = field(default_factory=dict)


class DirectCalls(Protocol):
    """What the trainer's process has an engine do while it hands weights over. `info` is made and understood at the two ends only.

    Each raises TransferError as long as the weights are untouched, EngineError from then on.
    """

    def join(self, info: Mapping[str, object]) -> None:
        """Joins a group, or agrees on how weights will come."""

    def start(self) -> None:
        """From here on weights are overwritten."""

    def receive(self, info: Mapping[str, object]) -> None:
        """Takes what is described, all or a part."""

    def finish(self) -> None:
        """All has come."""

    def interrupt(self, reason: str) -> None:
        """Ends the call that another thread is in, as failed."""


class DirectTransfer(Protocol):
    """All weights of one version, offered by the trainer's process."""

    digest: str
    shapes: Mapping[str, Sequence[int]]

    def run(self, names: Sequence[str], calls: DirectCalls) -> None:
        """Gets those of the names, in that order. Raises TransferError, and what the calls raise."""


@dataclass(frozen=True, slots=True)
class DirectWays:
    """How an engine takes weights straight from the trainer's process."""

    transports: tuple[str, ...]
    workers: int
    """Processes of the engine that take part."""
    load: Callable[[DirectTransfer, int], None]
    """As `load_weights`, with the version. Raises TransferError if the weights are untouched: then load_weights is what is left."""


class Engine(Protocol):
    """One inference engine; called from one thread (the replica's), except where it says otherwise."""

    def start(self) -> None:
        """Builds the engine, without weights: ends `asleep`. Raises EngineError."""

    def wake(self) -> None:
        """asleep -> paused, with memory for weights; that for the cache is there after `open`. Raises EngineError if it is not awake."""

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Takes all weights in state `paused` or `frozen`: every name of the model, in its shape; of tied ones, any.

        Cached tokens are forgotten, but for those of frozen requests. The version changes only once all of them are in. Raises EngineError
        and leaves the version; `open` then waits for a complete load. Frozen requests stay for `pause` to end; if the engine has failed,
        each has ended by itself: as `aborted` with what it had, or as `error`.
        """

    @property
    def direct(self) -> DirectWays | None:
        """How it takes weights without a file in between; None: it does not."""

    def open(self) -> None:
        """paused, frozen -> open: admits requests, and what was frozen goes on.

        Raises EngineError when no weights were loaded since the last `wake` (C-29).
        """

    def submit(self, request: GenerateRequest) -> None:
        """Queues a request; when the engine is not open its output is `refused`. Raises EngineError if the id is still in flight."""

    def abort(self, requests: Sequence[str]) -> None:
        """Each of these that is still in flight ends with outcome `aborted` and its partial tokens; unknown ids are ignored."""

    def poll(self, timeout_s: float) -> list[GenerateOutput]:
        """Outputs that are there, waiting at most `timeout_s` for the first. May be called from another thread than the rest."""

    def pause(self) -> None:
        """open, frozen -> paused: admits nothing more and aborts all in flight; returns when every one of them has its output."""

    def freeze(self) -> None:
        """open -> frozen: admits nothing more, and stops all in flight where it is; nothing is computed any more when it returns."""

    def sleep(self) -> None:
        """paused -> asleep: frees cache and weights. Raises EngineError when it could not."""

    def stats(self) -> EngineStats:
        """A cheap look; may be called from any thread."""

    def close(self) -> None:
        """Ends the engine and every thread and process of it; what is in flight is aborted."""


def require(call: str, state: EngineState | None, *states: EngineState) -> None:
    """Raises EngineError for a call that the engine cannot follow in its state."""
    if state not in states:
        raise EngineError(f"{call} in state {state}: it needs {' or '.join(states)}")


def require_weights(ready: bool, version: int | None) -> None:
    """Raises EngineError for an `open` without weights; `version` are those that were loaded last."""
    if not ready:
        raise EngineError(
            f"no weights were loaded completely since the last wake or failed load (the last version was {version}): "
            "call load_weights first"
        )


def require_started(it: T | None) -> T:
    """What an engine has from its start on. Raises EngineError before that."""
    if it is None:
        raise EngineError("the engine was not started: call start first")
    return it


def reason_unservable(request: GenerateRequest, max_model_len: int, vocab_size: int) -> str | None:
    """Why no engine of this size can ever serve the request, None if one can."""
    prompt, prefix, new = len(request.prompt_tokens), len(request.prefix_tokens), request.max_new_tokens
    if prompt == 0 or new < 1:
        return f"request {request.request} has {prompt} prompt tokens and max_new_tokens {new}: both must be at least 1"
    if prompt + prefix + new > max_model_len:
        return (
            f"request {request.request} may need {prompt} prompt + {prefix} prefix + {new} new tokens, "
            f"the engine's max_model_len is {max_model_len}: raise it, or lower the response length"
        )
    highest = max(max(request.prompt_tokens), max(request.prefix_tokens, default=0))
    lowest = min(min(request.prompt_tokens), min(request.prefix_tokens, default=0))
    if lowest < 0 or highest >= vocab_size:
        return f"request {request.request} has token ids {lowest}..{highest}, the model's are 0..{vocab_size - 1}: use its tokenizer"
    return None
