"""One swing of the trainer's devices, phase by phase. Whoever acts announces; a holder gives up what it holds by itself.

    lend:  yield ─DevicesYielded─▶ wake ─all awake or lost─▶ open ─RoutesOpened─▶ SwitchDone(rollout)
             └─YieldRefused─▶ SwitchRejected(busy)   └─nobody awake─▶ rollback ─DevicesReloaded─▶ SwitchRejected(replica_failed)
    back:  cut ─RoutesCut─▶ abort ─every id in flight at the cut has its outcome─▶ sleep ─all asleep or lost─▶ reload ─▶ SwitchDone(train)

There is no rollback after `OpenRoutesRequested`. A phase that waits for a replica has a deadline that acts: the replica is killed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bus.core import Deadline
from bus.entry import Entry
from bus.events import (
    AbortRequested,
    CutRoutesRequested,
    Deadlines,
    DevicesReloaded,
    DevicesYielded,
    Event,
    OpenRoutesRequested,
    ReloadRequested,
    RoutesCut,
    RoutesOpened,
    SleepRequested,
    SwitchDone,
    SwitchRejected,
    SwitchStarted,
    WakeRequested,
    WeightsPublished,
    YieldRefused,
    YieldRequested,
)
from bus.requests import Outcome, Requests
from services.controller.replicas import Incarnation, Replicas

Phase = Literal["yield", "wake", "open", "rollback", "cut", "abort", "sleep", "reload", "busy", "done"]


@dataclass
class Swing:
    """The running swing. `woken`: replicas that got a WakeRequested since the devices left, with their epochs."""

    started: SwitchStarted
    request: int
    """Position of the SwitchRequested behind it, 0 when the controller acts by itself."""
    phase: Phase
    woken: dict[str, int] = field(default_factory=dict)
    to_wake: dict[str, int] = field(default_factory=dict)
    """Fixed at DevicesYielded."""
    awake: tuple[str, ...] = ()
    asked: dict[str, None] = field(default_factory=dict)
    """What was requested in this phase: a replica's name, or `""` for the trainer or rollouter."""
    at_cut: dict[tuple[str, int], str] = field(default_factory=dict)
    """Requests in flight at the cut without an outcome yet -> replica."""
    left_home: bool = False
    """DevicesYielded was seen: ending without a change needs a reload."""

    @property
    def id(self) -> int:
        return self.started.swing

    def apply(self, entry: Entry, replicas: Replicas, requests: Requests, outcomes: list[Outcome]) -> None:
        """Takes in one entry, after the other folds did."""
        event = entry.event
        match event:
            case YieldRequested() | CutRoutesRequested() | OpenRoutesRequested() | ReloadRequested():
                self.asked[""] = None
                if isinstance(event, OpenRoutesRequested):
                    self.awake = event.replicas
            case WakeRequested():
                self.asked[event.replica] = None
                self.woken[event.replica] = event.epoch
            case AbortRequested(reason="swing") | SleepRequested():
                self.asked[event.replica] = None
            case DevicesYielded() if event.swing == self.id:
                self.left_home = True
                self.to_wake = replicas.wakeable()
                self._enter("wake")
            case YieldRefused() if event.swing == self.id:
                self._enter("busy")
            case RoutesOpened() | DevicesReloaded() if event.swing == self.id:
                self._enter("done")
            case RoutesCut() if event.swing == self.id:
                self.at_cut = {key: name for name in self.woken for key in requests.open.get(name, ())}
                self._enter("abort")
            case _:
                pass
        for request, _ in outcomes:
            self.at_cut.pop((request.request, request.attempt), None)
        self._advance(replicas)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.asked = {}

    def _advance(self, replicas: Replicas) -> None:
        """Moves on when what the phase waits for is there; phases that nobody has to do anything in are passed through."""
        if self.phase == "wake" and all(self._settled(name, epoch, replicas) for name, epoch in self.to_wake.items()):
            self._enter("open" if self._awake_now(replicas) else "rollback")
        if self.phase == "open" and not self.asked and not all(self._settled(n, e, replicas) for n, e in self.to_wake.items()):
            self._enter("wake")
        if self.phase == "abort" and not self.at_cut:
            self._enter("sleep")
        if self.phase == "sleep" and all(replicas.is_off_devices(name, epoch) for name, epoch in self.woken.items()):
            self._enter("reload")

    def _settled(self, name: str, epoch: int, replicas: Replicas) -> bool:
        if replicas.is_lost(name, epoch):
            return True
        if name not in self.woken:
            return replicas.current(name, epoch) is None
        return replicas.is_awake(name, epoch)

    def _awake_now(self, replicas: Replicas) -> tuple[str, ...]:
        return tuple(name for name, epoch in self.woken.items() if replicas.is_awake(name, epoch))

    def decide(self, replicas: Replicas, weights: WeightsPublished) -> Event | None:
        """The next request of this swing, or its end."""
        match self.phase:
            case "yield":
                return self._once(YieldRequested(swing=self.id))
            case "wake":
                return self._wake(replicas, weights)
            case "open":
                return self._once(OpenRoutesRequested(swing=self.id, replicas=self._awake_now(replicas)))
            case "rollback" | "reload":
                return self._once(ReloadRequested(swing=self.id))
            case "cut":
                return self._once(CutRoutesRequested(swing=self.id))
            case "abort":
                return self._abort(replicas)
            case "sleep":
                return self._sleep(replicas)
            case "busy":
                return SwitchRejected(request=self.request, swing=self.id, reason="busy")
            case "done":
                return self._end()

    def _once(self, event: Event) -> Event | None:
        return None if "" in self.asked else event

    def _wake(self, replicas: Replicas, weights: WeightsPublished) -> Event | None:
        for name, epoch in self.to_wake.items():
            if name not in self.asked and replicas.wakeable().get(name) == epoch:
                return WakeRequested(
                    replica=name, epoch=epoch, swing=self.id,
                    version=weights.version, revision=weights.revision, uri=weights.uri, digest=weights.digest,
                    delta=weights.delta, direct=weights.direct,
                )  # fmt: skip
        return None

    def _abort(self, replicas: Replicas) -> Event | None:
        for name, epoch in self.woken.items():
            if name not in self.asked and replicas.current(name, epoch) is not None:
                return AbortRequested(replica=name, epoch=epoch, reason="swing", swing=self.id)
        return None

    def _sleep(self, replicas: Replicas) -> Event | None:
        for name, epoch in self.woken.items():
            if name not in self.asked and replicas.current(name, epoch) is not None and not replicas.is_off_devices(name, epoch):
                return SleepRequested(replica=name, epoch=epoch, swing=self.id)
        return None

    def _end(self) -> Event:
        if self.started.target == "rollout" and not self.awake:
            return SwitchRejected(request=self.request, swing=self.id, reason="replica_failed")
        return SwitchDone(swing=self.id, target=self.started.target, replicas=self.awake)

    def deadlines(self, limits: Deadlines, replicas: Replicas) -> list[tuple[Deadline, Incarnation | None]]:
        """What this phase must bring by when, and which replica is late if it does not; None: trainer or rollouter, only reported."""
        match self.phase:
            case "wake":
                late = {name: epoch for name, epoch in self.to_wake.items() if not self._settled(name, epoch, replicas)}
                return self._on_replicas(late, limits.wake_s)
            case "abort":
                owing = dict.fromkeys(self.at_cut.values())
                return self._on_replicas({name: self.woken[name] for name in owing}, limits.abort_s)
            case "sleep":
                late = {name: epoch for name, epoch in self.woken.items() if not replicas.is_off_devices(name, epoch)}
                return self._on_replicas(late, limits.sleep_s)
            case "busy" | "done":
                return []
            case _:
                return [(Deadline(f"{self.phase}:{self.id}", limits.service_s), None)]

    def _on_replicas(self, late: dict[str, int], seconds: float) -> list[tuple[Deadline, Incarnation | None]]:
        return [(Deadline(f"{self.phase}:{self.id}:{name}:{epoch}", seconds), (name, epoch)) for name, epoch in late.items()]
