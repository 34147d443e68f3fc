"""Events of the rollouter, the only router.

SampleStarted ▸ GenerationRequested each answer ▸ (replica) GenerationFinished … ▸ SampleReady | SampleDropped
controller: CutRoutesRequested ▸ RoutesCut        controller: OpenRoutesRequested ▸ RoutesOpened
trainer: WeightsPublished ▸ WeightUpdateRequested each serving replica ▸ (replica) WeightsApplied
                          ▸ EvalRequested one replica ▸ GenerationRequested(evaluates) … ▸ EvalScored each prompt ▸ EvalDone
"""

from __future__ import annotations

from typing import ClassVar, Literal

from bus.events.base import BlobRef, DirectWeights, Event, Role, WeightsDelta


class SampleStarted(Event):
    """Prompt number `sample` of the plan's order was taken; from here to SampleReady it is the rollouter's. rollouter -> all."""

    kind: ClassVar[str] = "SampleStarted"
    emitter: ClassVar[Role | None] = "rollouter"
    sample: int
    version: int
    """Newest published version at the start."""


class GenerationRequested(Event):
    """Generate answer `answer` of `sample` on one incarnation of one replica, woken by `swing` (0: standalone). rollouter -> replica."""

    kind: ClassVar[str] = "GenerationRequested"
    emitter: ClassVar[Role | None] = "rollouter"
    request: str
    """`sample.answer`, the same for all attempts."""
    attempt: int
    replica: str
    epoch: int
    swing: int
    sample: int
    answer: int
    max_new_tokens: int
    prefix: BlobRef | None = None
    """The answer as far as earlier attempts got."""
    prefix_tokens: int = 0
    evaluates: int | None = None
    """The version under evaluation; then `request` is `eval-VERSION-PROMPT.ANSWER` and `sample`, -1 - PROMPT, the number of no sample."""

    def inbox(self) -> str | None:
        return self.replica


class AbortRequested(Event):
    """End these requests now, with what they have (`requests` empty: all in flight on that replica). rollouter | controller -> replica."""

    kind: ClassVar[str] = "AbortRequested"
    replica: str
    epoch: int
    reason: Literal["rebalance", "swing", "evaluation"]
    swing: int
    requests: tuple[str, ...] = ()

    def emitted_by(self) -> tuple[Role, ...] | None:
        return ("controller",) if self.reason == "swing" else ("rollouter",)

    def inbox(self) -> str | None:
        return self.replica


class WeightUpdateRequested(Event):
    """Load the published weights `version`. rollouter -> replica."""

    kind: ClassVar[str] = "WeightUpdateRequested"
    emitter: ClassVar[Role | None] = "rollouter"
    replica: str
    epoch: int
    version: int
    revision: int
    uri: str
    digest: str
    mode: Literal["abort", "keep"] = "abort"
    """What is in flight ends as aborted first; or it is frozen meanwhile, and goes on with these weights."""
    delta: WeightsDelta | None = None
    direct: DirectWeights | None = None

    def inbox(self) -> str | None:
        return self.replica


class EvalRequested(Event):
    """`version` is evaluated on this replica, which skips updates and serves nothing else until EvalDone. rollouter -> replica."""

    kind: ClassVar[str] = "EvalRequested"
    emitter: ClassVar[Role | None] = "rollouter"
    version: int
    replica: str
    epoch: int

    def inbox(self) -> str | None:
        return self.replica


class EvalScored(Event):
    """All answers to one validation prompt are scored; without `rewards` there is none, for what `error` says. rollouter -> all."""

    kind: ClassVar[str] = "EvalScored"
    emitter: ClassVar[Role | None] = "rollouter"
    version: int
    prompt: int
    rewards: tuple[float, ...]
    num_tokens: tuple[int, ...]
    error: str = ""


class EvalDone(Event):
    """Result of an evaluation; `partial` when a prompt has no score: out of time, stopped, failed, or skipped. rollouter -> all."""

    kind: ClassVar[str] = "EvalDone"
    emitter: ClassVar[Role | None] = "rollouter"
    version: int
    num_prompts: int
    """Prompts that were scored."""
    partial: bool
    metrics: dict[str, float]


class SampleReady(Event):
    """All answers are there and scored; from here on the sample is the trainer's. rollouter -> all."""

    kind: ClassVar[str] = "SampleReady"
    emitter: ClassVar[Role | None] = "rollouter"
    sample: int
    num_tokens: int
    oldest_version: int
    newest_version: int
    mean_reward: float
    blob: BlobRef


class SampleMoved(Event):
    """Answers of a sample go on on another replica, for `reason`. rollouter -> monitor."""

    kind: ClassVar[str] = "SampleMoved"
    emitter: ClassVar[Role | None] = "rollouter"
    sample: int
    request: str
    source: str
    reason: Literal["rebalance", "swing", "lost", "update", "error"]


class RoutesCut(Event):
    """No request goes to a hybrid from here on. Answers CutRoutesRequested. rollouter -> controller."""

    kind: ClassVar[str] = "RoutesCut"
    emitter: ClassVar[Role | None] = "rollouter"
    swing: int


class RoutesOpened(Event):
    """Requests may go to these hybrids from here on. Answers OpenRoutesRequested. rollouter -> controller."""

    kind: ClassVar[str] = "RoutesOpened"
    emitter: ClassVar[Role | None] = "rollouter"
    swing: int
    replicas: tuple[str, ...]


class PromptsExhausted(Event):
    """Every prompt of the plan was started. rollouter -> trainer, controller."""

    kind: ClassVar[str] = "PromptsExhausted"
    emitter: ClassVar[Role | None] = "rollouter"
    num_prompts: int
