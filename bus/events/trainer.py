"""Events of the trainer, the holder of the devices at home.

controller: TrainGranted ▸ trainer: WaitSamples* ▸ BatchFormed ▸ StepDone … StepDone(is_boundary) ▸ WeightsPublished ▸ CheckpointSaved
replica on another machine than the weights: ServiceStarted ▸ trainer: WeightsShared ▸ rollouter, controller: may ask it to load them
controller: YieldRequested ▸ trainer: DevicesYielded | YieldRefused        controller: ReloadRequested ▸ trainer: DevicesReloaded
"""

from __future__ import annotations

from typing import ClassVar, Literal

from bus.events.base import DirectWeights, Event, Role, WeightsDelta


class WaitSamples(Event):
    """Granted, devices home, and fewer samples ready (`have`) than the step needs. trainer -> policy, controller, monitor."""

    kind: ClassVar[str] = "WaitSamples"
    emitter: ClassVar[Role | None] = "trainer"
    step: int
    need: int
    have: int


class BatchFormed(Event):
    """The samples of a step, in log order, and how they are split (indices into `samples`). trainer -> all."""

    kind: ClassVar[str] = "BatchFormed"
    emitter: ClassVar[Role | None] = "trainer"
    step: int
    samples: tuple[int, ...]
    micro_batches: tuple[tuple[int, ...], ...]


class StepDone(Event):
    """An optimizer step is done. `version`: the published weights the cycle started from. `seconds`: wait, train, … trainer -> all."""

    kind: ClassVar[str] = "StepDone"
    emitter: ClassVar[Role | None] = "trainer"
    step: int
    version: int
    is_boundary: bool
    num_samples: int
    seconds: dict[str, float]
    metrics: dict[str, float]


class WeightsPublished(Event):
    """Weights `version` can be loaded from `uri`; a redo that diverged publishes it again as the next `revision`. trainer -> all."""

    kind: ClassVar[str] = "WeightsPublished"
    emitter: ClassVar[Role | None] = "trainer"
    version: int
    revision: int
    transport: str
    uri: str
    digest: str
    num_bytes: int
    seconds: float
    dtype: str = ""
    """What its floating-point tensors were rounded to; empty: they are those that were trained."""
    delta: WeightsDelta | None = None
    direct: DirectWeights | None = None
    machine: str = ""
    """In whose memory they are, as `ServiceStarted.machine` names it; empty: in a folder, where all find them."""


class WeightsShared(Event):
    """Weights that were published in one machine's memory lie in the shared folder, too, from here on. trainer -> all."""

    kind: ClassVar[str] = "WeightsShared"
    emitter: ClassVar[Role | None] = "trainer"
    version: int
    revision: int
    uri: str
    num_bytes: int
    seconds: float


class DevicesYielded(Event):
    """The trainer left its devices (offloaded); its grant ends. Answers YieldRequested. trainer -> controller."""

    kind: ClassVar[str] = "DevicesYielded"
    emitter: ClassVar[Role | None] = "trainer"
    swing: int
    seconds: float


class YieldRefused(Event):
    """The devices stay: a batch was just formed, or a boundary opened that the swing does not answer. trainer -> controller."""

    kind: ClassVar[str] = "YieldRefused"
    emitter: ClassVar[Role | None] = "trainer"
    swing: int
    step: int


class DevicesReloaded(Event):
    """The trainer is back on its devices. Answers ReloadRequested. trainer -> controller."""

    kind: ClassVar[str] = "DevicesReloaded"
    emitter: ClassVar[Role | None] = "trainer"
    swing: int
    seconds: float


class CheckpointSaved(Event):
    """Everything up to `position` (the StepDone of `step`) can be restored from `uri`. trainer -> janitor, itself."""

    kind: ClassVar[str] = "CheckpointSaved"
    emitter: ClassVar[Role | None] = "trainer"
    step: int
    version: int
    position: int
    uri: str
    digest: str
    seconds: float


class RedoDiverged(Event):
    """Steps redone after a restart gave other weights for `version` than were published. trainer -> controller, operator."""

    kind: ClassVar[str] = "RedoDiverged"
    emitter: ClassVar[Role | None] = "trainer"
    version: int
    recorded_digest: str
    redone_digest: str
    action: Literal["stop", "republish"]


class SampleDropped(Event):
    """A sample will never be trained; its place is free from this entry on. Its owner -> all."""

    kind: ClassVar[str] = "SampleDropped"
    sample: int
    reason: Literal["stale", "evicted", "tail", "failed", "filtered"]
    detail: str = ""

    def emitted_by(self) -> tuple[Role, ...] | None:
        return ("rollouter",) if self.reason in ("failed", "filtered") else ("trainer",)
