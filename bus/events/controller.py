"""Events of the controller, the single arbiter of the trainer's devices. The swing is drawn in `services/controller/core.py`."""

from __future__ import annotations

from typing import ClassVar, Literal

from bus.events.base import DirectWeights, Event, Role, Target, WeightsDelta

RejectReason = Literal["late", "busy", "replica_failed", "run_ended", "no_hybrid", "not_lent", "not_home", "waiting_samples", "not_asked"]
"""not_asked: `use_dynamic_resource_scheduling` is off."""


class BoundaryOpened(Event):
    """Boundary 0: everybody has started and weights 0 are published. controller -> policy."""

    kind: ClassVar[str] = "BoundaryOpened"
    emitter: ClassVar[Role | None] = "controller"
    version: int


class TrainGranted(Event):
    """The trainer may train all steps up to the next boundary. controller -> trainer."""

    kind: ClassVar[str] = "TrainGranted"
    emitter: ClassVar[Role | None] = "controller"
    version: int
    """The boundary that this grant decides or follows."""
    reason: Literal["verdict", "deadline", "static", "returned", "rejected"]


class YieldRequested(Event):
    """Leave the devices; answered exactly once. controller -> trainer."""

    kind: ClassVar[str] = "YieldRequested"
    emitter: ClassVar[Role | None] = "controller"
    swing: int


class ReloadRequested(Event):
    """Come back to the devices; answered exactly once. controller -> trainer."""

    kind: ClassVar[str] = "ReloadRequested"
    emitter: ClassVar[Role | None] = "controller"
    swing: int


class CutRoutesRequested(Event):
    """Route nothing more to hybrids; answered exactly once. controller -> rollouter."""

    kind: ClassVar[str] = "CutRoutesRequested"
    emitter: ClassVar[Role | None] = "controller"
    swing: int


class OpenRoutesRequested(Event):
    """Route to these hybrids; answered exactly once. controller -> rollouter."""

    kind: ClassVar[str] = "OpenRoutesRequested"
    emitter: ClassVar[Role | None] = "controller"
    swing: int
    replicas: tuple[str, ...]


class WakeRequested(Event):
    """Wake up on the lent devices with published weights. controller -> replica."""

    kind: ClassVar[str] = "WakeRequested"
    emitter: ClassVar[Role | None] = "controller"
    replica: str
    epoch: int
    swing: int
    version: int
    revision: int
    uri: str
    digest: str
    delta: WeightsDelta | None = None
    direct: DirectWeights | None = None

    def inbox(self) -> str | None:
        return self.replica


class SleepRequested(Event):
    """Free cache and weights. controller -> replica."""

    kind: ClassVar[str] = "SleepRequested"
    emitter: ClassVar[Role | None] = "controller"
    replica: str
    epoch: int
    swing: int

    def inbox(self) -> str | None:
        return self.replica


class KillRequested(Event):
    """End this incarnation with its process group; the supervisor verifies the exit (ServiceLost). controller -> replica, supervisor."""

    kind: ClassVar[str] = "KillRequested"
    emitter: ClassVar[Role | None] = "controller"
    replica: str
    epoch: int
    reason: str

    def inbox(self) -> str | None:
        return self.replica


class SwitchStarted(Event):
    """A swing begins. `reason`: who wanted it. controller -> all."""

    kind: ClassVar[str] = "SwitchStarted"
    emitter: ClassVar[Role | None] = "controller"
    swing: int
    target: Target
    reason: Literal["verdict", "starved", "evaluation", "give_back", "max_lent", "no_replica", "stop"]
    answers: int | None = None
    """The boundary that is decided by it."""
    give_back_at: int = 0
    max_lent_s: float = 0.0


class SwitchDone(Event):
    """The devices have a new holder. controller -> all."""

    kind: ClassVar[str] = "SwitchDone"
    emitter: ClassVar[Role | None] = "controller"
    swing: int
    target: Target
    replicas: tuple[str, ...] = ()


class SwitchRejected(Event):
    """A request cannot be followed (`swing` 0: none was begun), or a begun swing ends without a change. controller -> policy."""

    kind: ClassVar[str] = "SwitchRejected"
    emitter: ClassVar[Role | None] = "controller"
    request: int
    """Position of the SwitchRequested, 0 if the controller acted by itself."""
    swing: int
    reason: RejectReason


class DeadlineMissed(Event):
    """What `key` names did not happen within `seconds`, counted on the controller's monotonic clock. controller -> itself, all."""

    kind: ClassVar[str] = "DeadlineMissed"
    emitter: ClassVar[Role | None] = "controller"
    key: str
    seconds: float


class Stalled(Event):
    """Nothing moves: how many samples are ready, how many are needed, and what is waited for. controller -> operator."""

    kind: ClassVar[str] = "Stalled"
    emitter: ClassVar[Role | None] = "controller"
    have: int
    need: int
    waiting_on: tuple[str, ...]


class ReplicaLost(Event):
    """This incarnation of a replica is gone, its exit verified; every request to it that had no outcome is lost. controller -> all."""

    kind: ClassVar[str] = "ReplicaLost"
    emitter: ClassVar[Role | None] = "controller"
    replica: str
    epoch: int


class RunEnded(Event):
    """Last word of a run; services stop. controller -> all."""

    kind: ClassVar[str] = "RunEnded"
    emitter: ClassVar[Role | None] = "controller"
    reason: Literal[
        "completed", "prompts_exhausted", "stopped", "no_replicas", "service_lost", "kill_unverified", "redo_diverged", "memory", "failed"
    ]
    detail: str = ""
