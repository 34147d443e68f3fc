"""What each replica does, folded from the log.

starting ─ReplicaAdded─▶ standalone: idle ⇄ generate (requests in flight) ⇄ update      any ─ReplicaLost, ServiceLost─▶ lost
                                     idle ⇄ evaluate (pinned: EvalRequested … EvalDone)
                         hybrid:     asleep ─RoutesOpened─▶ idle ⇄ generate ─RoutesCut─▶ asleep
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.entry import Entry
from bus.events import (
    EvalDone,
    EvalRequested,
    ReplicaAdded,
    ReplicaAwake,
    ReplicaFailed,
    ReplicaLost,
    RoutesCut,
    RoutesOpened,
    ServiceLost,
    ServiceStarted,
    WakeRequested,
    WeightsApplied,
    WeightUpdateRequested,
)
from bus.requests import Requests
from bus.sources import REPLICA_PREFIX

Doing = Literal["starting", "asleep", "idle", "generate", "update", "evaluate", "lost"]


@dataclass
class ReplicaState:
    """One replica: its newest incarnation."""

    name: str
    hybrid: bool
    epoch: int = 0
    there: bool = False
    """Its engine is up."""
    open: bool = False
    """Requests may be routed to it."""
    updating: bool = False
    evaluating: bool = False
    """It is pinned to a version that is evaluated."""
    lost: bool = False
    version: int = -1
    slots: int = 0
    answers: int = 0
    """Answers that it finished."""

    @property
    def serves(self) -> bool:
        """It is up, and requests may be routed to it, now or after its update."""
        return self.there and not self.lost and (self.open or not self.hybrid)

    def doing(self, in_flight: int) -> Doing:
        """What it does now."""
        if self.lost:
            return "lost"
        if not self.there:
            return "starting"
        if self.hybrid and not self.open:
            return "asleep"
        if self.evaluating:
            return "evaluate"
        if self.updating:
            return "update"
        return "generate" if in_flight else "idle"


class ReplicaStates:
    """Fold of the replicas' events; `requests` is the fold of what is in flight and has seen each entry already."""

    def __init__(self, requests: Requests) -> None:
        self.by_name: dict[str, ReplicaState] = {}
        self.lost = 0
        """How many incarnations were lost."""
        self._requests = requests

    def plan(self, standalone: tuple[str, ...], hybrid: tuple[str, ...]) -> None:
        """Which replicas there will be."""
        self.by_name = {name: ReplicaState(name, name in hybrid) for name in standalone + hybrid}

    def doing(self) -> dict[str, Doing]:
        """Replica -> what it does now."""
        return {name: state.doing(self._requests.load(name)) for name, state in self.by_name.items()}

    def in_flight(self, name: str) -> int:
        """Requests in flight on a replica."""
        return self._requests.load(name)

    def count_answer(self, name: str) -> None:
        """A replica finished an answer."""
        self._of(name).answers += 1

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        match event:
            case ServiceStarted() if entry.source.startswith(REPLICA_PREFIX):
                self._begin(entry.source.removeprefix(REPLICA_PREFIX), entry.epoch)
            case ServiceLost() if event.service.startswith(REPLICA_PREFIX):
                self._lose(event.service.removeprefix(REPLICA_PREFIX), event.epoch)
            case ReplicaLost():
                self.lost += 1
                self._lose(event.replica, event.epoch)
            case RoutesOpened():
                for state in self.by_name.values():
                    state.open = state.name in event.replicas
            case EvalDone():
                for state in self.by_name.values():
                    state.evaluating = False
            case RoutesCut():
                for state in self.by_name.values():
                    state.open = False
            case _:
                self._apply_to_one(entry)

    def _apply_to_one(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case ReplicaAdded():
                state = self._of(event.replica)
                state.there, state.slots = True, event.slots
            case EvalRequested():
                self._of(event.replica).evaluating = True
            case WeightUpdateRequested():
                self._of(event.replica).updating = True
            case WeightsApplied():
                state = self._of(event.replica)
                state.updating, state.version = False, event.version
            case WakeRequested():
                self._of(event.replica).updating = False
            case ReplicaAwake():
                self._of(event.replica).version = event.version
            case ReplicaFailed():
                self._of(event.replica).there = False
            case _:
                pass

    def _begin(self, name: str, epoch: int) -> None:
        state = self._of(name)
        state.lost = state.there = state.open = state.updating = state.evaluating = False
        state.epoch = epoch

    def _lose(self, name: str, epoch: int) -> None:
        state = self._of(name)
        if epoch >= state.epoch:
            state.lost, state.there, state.open, state.updating, state.evaluating = True, False, False, False, False

    def _of(self, name: str) -> ReplicaState:
        return self.by_name.setdefault(name, ReplicaState(name, hybrid=False))
