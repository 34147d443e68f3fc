"""Events of a replica: facts about one inference engine. All carry the replica's name; the envelope carries its epoch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from bus.events.base import BlobRef, Event, Role


class GenerationFinished(Event):
    """The one outcome of (request, attempt); `num_tokens` and `blob` cover the answer so far with its prefix. replica -> rollouter."""

    kind: ClassVar[str] = "GenerationFinished"
    emitter: ClassVar[Role | None] = "replica"
    request: str
    attempt: int
    replica: str
    outcome: Literal["stop", "length", "aborted", "refused", "error"]
    num_tokens: int = Field(ge=0)
    version_spans: tuple[tuple[int, int], ...] = ()
    """(version, tokens) in order; adds up to `num_tokens`."""
    blob: BlobRef | None = None
    error: str = ""


class ReplicaAdded(Event):
    """The engine is up, without weights: a standalone waits for its first update, a hybrid sleeps. replica -> rollouter, controller."""

    kind: ClassVar[str] = "ReplicaAdded"
    emitter: ClassVar[Role | None] = "replica"
    replica: str
    role: Literal["standalone", "hybrid"]
    slots: int
    """Requests it is sent at a time: those it runs, and a few that wait for them."""
    seconds: float


class ReplicaAwake(Event):
    """Fully awake with weights `version`, admitting nothing before routes are opened. Answers WakeRequested. replica -> controller."""

    kind: ClassVar[str] = "ReplicaAwake"
    emitter: ClassVar[Role | None] = "replica"
    replica: str
    swing: int
    version: int
    revision: int
    seconds: float
    transport: str = ""
    """How the weights came: `shm`, `file`, `delta`, `nccl`, `ipc`; empty in recordings older than this."""
    num_bytes: int = 0
    """Read or received for them."""


class ReplicaAsleep(Event):
    """Cache and weights are freed, nothing is in flight. Answers SleepRequested. replica -> controller."""

    kind: ClassVar[str] = "ReplicaAsleep"
    emitter: ClassVar[Role | None] = "replica"
    replica: str
    swing: int
    seconds: float


class WeightsApplied(Event):
    """The replica serves weights `version` from here on. Answers WeightUpdateRequested. replica -> rollouter."""

    kind: ClassVar[str] = "WeightsApplied"
    emitter: ClassVar[Role | None] = "replica"
    replica: str
    version: int
    revision: int
    seconds: float
    transport: str = ""
    num_bytes: int = 0


class ReplicaFailed(Event):
    """The engine did not do what was asked (`during`); the replica is of no use any more and waits to be killed. replica -> controller."""

    kind: ClassVar[str] = "ReplicaFailed"
    emitter: ClassVar[Role | None] = "replica"
    replica: str
    during: Literal["start", "wake", "sleep", "abort", "update", "generate"]
    error: str
