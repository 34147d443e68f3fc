"""The single arbiter of the trainer's devices: answers boundaries, runs the swing, watches who is alive, ends the run.

    boundary v: StepDone(is_boundary) (0: BoundaryOpened) ─▶ open ─ verdict | deadline ─▶ answered ─ WeightsPublished(v) ─▶ decided:
        do not lend, deadline, cannot be followed ─▶ TrainGranted        lend ─▶ SwitchStarted(rollout) ─▶ (services/controller/swing.py)
    lent: ready >= min(give_back_at, ready + in flight + startable) | max_lent_s | nobody awake | SwitchRequested(train) ─▶ SwitchStarted(train)

Every rejection is said: `late`, `busy`, … A request that arrives while it cannot be followed is never queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bus.books import Books
from bus.core import Deadline, Request
from bus.entry import Entry, role_of
from bus.events import (
    BoundaryOpened,
    DeadlineMissed,
    DevicesReloaded,
    DevicesYielded,
    Event,
    GenerationFinished,
    KillRequested,
    PolicyAttached,
    RedoDiverged,
    RejectReason,
    ReplicaLost,
    RunEnded,
    ServiceLost,
    ServiceStarted,
    StepDone,
    SwitchDone,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
    WaitSamples,
)
from bus.requests import Requests
from services.controller.replicas import Replicas
from services.controller.swing import Swing

ESSENTIAL = ("trainer", "rollouter", "controller")
Grant = Literal["verdict", "deadline", "static", "returned", "rejected"]


@dataclass
class Lent:
    """The devices are with the hybrids: since which swing, and when they go back."""

    started: SwitchStarted
    woken: dict[str, int]
    give_back_at: int
    max_lent_s: float
    wanted_back: bool = False
    """The policy asked for them."""


class ControllerCore:
    """See `bus.core.Core`."""

    source = "controller"

    def __init__(self) -> None:
        self.books = Books()
        self.requests = Requests()
        self.replicas = Replicas()
        self.swing: Swing | None = None
        self.lent: Lent | None = None
        self.home = True
        self.granted = False
        self.boundary: int | None = None
        """The boundary that is open: not decided yet."""
        self.ended = False
        self._opened = False
        """Boundary 0 has been opened."""
        self._verdict: tuple[int, SwitchRequested] | None = None
        """(position, event) of the open boundary's answer."""
        self._verdict_missed = False
        self._waiting: WaitSamples | None = None
        self._extra: tuple[int, SwitchRequested] | None = None
        """An accepted request in mid-cycle."""
        self._rejections: list[tuple[int, RejectReason]] = []
        self._regrant: Grant = "returned"
        self._swings = 0
        self._started: dict[str, None] = {}
        self._missed: dict[str, None] = {}
        self._failure: tuple[Literal["service_lost", "kill_unverified", "redo_diverged", "no_replicas", "failed"], str] | None = None
        self._finished: dict[str, int] = {}
        """Replica -> outcomes it has given, so that its progress can be watched."""

    # --- apply -------------------------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        event = entry.event
        self.books.apply(event)
        outcomes = self.requests.apply(entry)
        self.replicas.apply(entry)
        if self.swing is not None:
            self.swing.apply(entry, self.replicas, self.requests, outcomes)
        self._apply_to_boundary(entry, event)
        self._apply_to_devices(event)
        self._apply_to_services(entry, event)

    def _apply_to_boundary(self, entry: Entry, event: Event) -> None:
        match event:
            case BoundaryOpened():
                self._opened = True
                if self._asks():
                    self._open(event.version)
            case StepDone():
                self._waiting = None
                if event.is_boundary:
                    self.granted = False
                    if not self.books.last_step_done:
                        self._open(event.version + 1)
            case WaitSamples():
                self._waiting = event
            case TrainGranted():
                self.granted = True
                self._waiting = None
                self._close()
            case SwitchRequested():
                self._hear_policy(entry.position, event)
            case SwitchRejected():
                self._rejections = [waiting for waiting in self._rejections if waiting[0] != event.request]
                if self._extra is not None and self._extra[0] == event.request:
                    self._extra = None
                if event.request and self._verdict is not None and self._verdict[0] == event.request and event.swing == 0:
                    self._verdict = None
                    self._verdict_missed = True
                    self._regrant = "rejected"
            case _:
                pass

    def _asks(self) -> bool:
        plan = self.books.plan
        return plan is not None and plan.use_dynamic_resource_scheduling and len(plan.hybrid) > 0

    def _open(self, version: int) -> None:
        self.boundary = version
        self._verdict = None
        self._verdict_missed = False
        self._regrant = "returned"

    def _close(self) -> None:
        self.boundary = None
        self._verdict = None
        self._verdict_missed = False

    def _hear_policy(self, position: int, event: SwitchRequested) -> None:
        if event.amends is not None:
            reason = self._amend(event)
        elif event.answers is not None:
            reason = self._answer(position, event)
        else:
            reason = self._take_extra(position, event)
        if reason is not None:
            self._rejections.append((position, reason))

    def _answer(self, position: int, event: SwitchRequested) -> RejectReason | None:
        if event.answers != self.boundary or self._verdict is not None or self._verdict_missed:
            return "late"
        self._verdict = (position, event)
        return None

    def _amend(self, event: SwitchRequested) -> RejectReason | None:
        if self.lent is not None and self.lent.started.swing == event.amends and self.swing is None:
            lent = self.lent
        elif self.swing is not None and self.swing.id == event.amends and self.swing.started.target == "rollout":
            self.swing.started = self._amended(self.swing.started, event)
            return None
        else:
            return "late"
        lent.started = self._amended(lent.started, event)
        lent.give_back_at, lent.max_lent_s = lent.started.give_back_at, lent.started.max_lent_s
        return None

    def _amended(self, started: SwitchStarted, event: SwitchRequested) -> SwitchStarted:
        """No verdict lowers the number of a swing that was begun because nobody else could generate."""
        floor = started.give_back_at if started.reason in ("starved", "evaluation") else 0
        return started.model_copy(
            update={"give_back_at": max(floor, event.give_back_at), "max_lent_s": event.max_lent_s or started.max_lent_s}
        )

    def _take_extra(self, position: int, event: SwitchRequested) -> RejectReason | None:
        if self.boundary is not None or self.swing is not None or self._extra is not None:
            return "busy"
        if event.target == "train":
            if self.lent is None:
                return "not_lent"
            if self.lent.started.reason in ("starved", "evaluation"):
                return "waiting_samples"
            self.lent.wanted_back = True
            return None
        if not self.home or not self.granted:
            return "not_home"
        if not self._asks() or not self.replicas.wakeable():
            return "no_hybrid"
        self._extra = (position, event)
        return None

    def _apply_to_devices(self, event: Event) -> None:
        match event:
            case SwitchStarted():
                self._begin(event)
            case SwitchDone():
                self._finish(event)
            case SwitchRejected() if event.swing and self.swing is not None and event.swing == self.swing.id:
                self._regrant = "rejected"
                self.swing = None
            case DevicesYielded():
                self.granted = False
                self.home = False
                self._waiting = None
            case DevicesReloaded():
                self.home = True
            case _:
                pass

    def _begin(self, event: SwitchStarted) -> None:
        self._swings = event.swing
        request = 0
        if event.answers is not None and self._verdict is not None:
            request = self._verdict[0]
        elif self._extra is not None:
            request = self._extra[0]
        self._extra = None
        if event.answers is not None:
            self._close()
        self.swing = Swing(event, request, "yield" if event.target == "rollout" else "cut")
        if self.lent is not None and event.target == "train":
            self.swing.woken = self.lent.woken

    def _finish(self, event: SwitchDone) -> None:
        swing, self.swing = self.swing, None
        if event.target == "train" or swing is None:
            self.lent = None
            return
        started = swing.started
        self.lent = Lent(started, swing.woken, started.give_back_at, started.max_lent_s)

    def _apply_to_services(self, entry: Entry, event: Event) -> None:
        match event:
            case ServiceStarted():
                self._started[role_of(entry.source)] = None
            case PolicyAttached(mode="active"):
                self._started["policy"] = None
            case ServiceLost(restarting=False) if event.service in ESSENTIAL:
                self._failure = self._failure or ("service_lost", f"{event.service}: {event.detail}")
            case RedoDiverged(action="stop"):
                self._failure = self._failure or ("redo_diverged", f"version {event.version}")
            case GenerationFinished():
                self._finished[event.replica] = self._finished.get(event.replica, 0) + 1
            case DeadlineMissed():
                self._missed[event.key] = None
                self._miss(event.key)
            case RunEnded():
                self.ended = True
            case _:
                pass

    def _miss(self, key: str) -> None:
        what, _, rest = key.partition(":")
        match what:
            case "verdict":
                if self.boundary is not None and rest == str(self.boundary) and self._verdict is None:
                    self._verdict_missed = True
                    self._regrant = "deadline"
            case "boot" | "wake" | "abort" | "sleep" | "update" | "generate":
                name, epoch = rest.split(":")[-3:-1] if what in ("update", "generate") else rest.split(":")[-2:]
                if key in [deadline.key for deadline in self._replica_deadlines()]:
                    self.replicas.condemn(name, int(epoch), f"{what} took too long")
            case "kill":
                if key in [deadline.key for deadline in self._replica_deadlines()]:
                    self._failure = self._failure or ("kill_unverified", rest)
            case "lent":
                if self.lent is not None and rest == str(self.lent.started.swing):
                    self.lent.max_lent_s = -1.0
            case "no_replica" if not self.replicas.by_name:
                self._failure = self._failure or ("no_replicas", "none came back in time")
            case "start" if not self._opened:
                self._miss_start()
            case _:
                pass

    def _miss_start(self) -> None:
        missing = [role for role in ESSENTIAL if role not in self._started]
        if missing or self.books.version < 0:
            self._failure = self._failure or ("failed", f"not started in time: {', '.join(missing) or 'weights 0'}")
        elif not self._any_added():
            self._failure = self._failure or ("no_replicas", "none started in time")

    def _any_added(self) -> bool:
        return any(replica.state != "starting" for replica in self.replicas.by_name.values())

    # --- decide ------------------------------------------------------------------------------------------------------------------

    def decide(self) -> Event | None:
        if self.ended or self.books.plan is None:
            return None
        return (
            self._watch_replicas() or self._end() or self._reject() or self._swing_on() or self._decide_boundary() or self._lend_or_return()
        )

    def _watch_replicas(self) -> Event | None:
        for name, epoch in self.replicas.exited:
            return ReplicaLost(replica=name, epoch=epoch)
        for (name, epoch), reason in self.replicas.to_kill.items():
            return KillRequested(replica=name, epoch=epoch, reason=reason)
        return None

    def _end(self) -> Event | None:
        plan, books = self.books.plan, self.books
        assert plan is not None
        if self._failure is None and not books.finished and not self._all_replicas_given_up():
            return None
        if self.swing is not None:
            return SwitchRejected(request=self.swing.request, swing=self.swing.id, reason="run_ended")
        if self._failure is not None:
            return RunEnded(reason=self._failure[0], detail=self._failure[1])
        if not books.finished:
            return RunEnded(reason="no_replicas", detail="every replica was lost and none will be restarted")
        if books.steps_done >= plan.total_steps:
            return RunEnded(reason="completed")
        return RunEnded(reason="stopped" if books.stop_requested else "prompts_exhausted")

    def _all_replicas_given_up(self) -> bool:
        plan = self.books.plan
        assert plan is not None
        return not self.replicas.by_name and all(name in self.replicas.given_up for name in plan.standalone + plan.hybrid)

    def _reject(self) -> Event | None:
        for position, reason in self._rejections:
            return SwitchRejected(request=position, swing=0, reason=reason)
        if self._extra is not None and (self.boundary is not None or not self.home or not self.granted):
            # Accepted by a predecessor that did not live to act on it; the moment has passed.
            return SwitchRejected(request=self._extra[0], swing=0, reason="busy")
        return None

    def _swing_on(self) -> Event | None:
        if self.swing is None or self.books.publication is None:
            return None
        return self.swing.decide(self.replicas, self.books.publication)

    def _decide_boundary(self) -> Event | None:
        if not self._opened:
            return BoundaryOpened(version=0) if self._may_open() else None
        if self.swing is not None or self.lent is not None or not self.home:
            return None
        if self.boundary is None:
            return self._grant_anew()
        if self.books.version < self.boundary:
            return None
        if not self._asks():
            return TrainGranted(version=self.boundary, reason="static")
        if self._verdict is not None:
            return self._follow(*self._verdict)
        return TrainGranted(version=self.boundary, reason=self._regrant) if self._verdict_missed else None

    def _may_open(self) -> bool:
        plan = self.books.plan
        assert plan is not None
        everybody = all(role in self._started for role in ESSENTIAL) and ("policy" in self._started or not self._asks())
        added = all(self._has_settled(name) for name in plan.standalone + plan.hybrid)
        late = "start" in self._missed and self._any_added()
        essential = all(role in self._started for role in ESSENTIAL)
        return (
            self.books.version >= 0
            and not self.books.last_step_done
            and ((everybody and added and self._any_added()) or (late and essential))
        )

    def _has_settled(self, name: str) -> bool:
        replica = self.replicas.by_name.get(name)
        return name in self.replicas.given_up or (replica is not None and replica.state != "starting")

    def _grant_anew(self) -> Event | None:
        """Devices home, no boundary open, no grant: after a swing, or at the start of a run whose boundaries are not asked."""
        if self.granted or self.books.last_step_done:
            return None
        return TrainGranted(version=self.books.version, reason=self._regrant if self._asks() else "static")

    def _follow(self, position: int, verdict: SwitchRequested) -> Event:
        assert self.boundary is not None
        if verdict.target == "train":
            return TrainGranted(version=self.boundary, reason="verdict")
        if not self.replicas.wakeable():
            return SwitchRejected(request=position, swing=0, reason="no_hybrid")
        return self._start_lending("verdict", verdict.give_back_at, verdict.max_lent_s, answers=self.boundary)

    def _start_lending(self, reason: Literal["verdict", "starved"], give_back_at: int, max_lent_s: float, answers: int | None) -> Event:
        plan = self.books.plan
        assert plan is not None
        return SwitchStarted(
            swing=self._swings + 1, target="rollout", reason=reason, answers=answers,
            give_back_at=give_back_at, max_lent_s=max_lent_s or plan.max_lent_s,
        )  # fmt: skip

    def _lend_or_return(self) -> Event | None:
        if self.swing is not None:
            return None
        if self.lent is not None:
            reason = self._why_return(self.lent)
            return None if reason is None else SwitchStarted(swing=self._swings + 1, target="train", reason=reason)
        if self._extra is not None:
            return self._start_lending("verdict", self._extra[1].give_back_at, self._extra[1].max_lent_s, answers=None)
        if self._starved() and self._waiting is not None:
            return self._start_lending("starved", self._waiting.need, 0.0, answers=None)
        return None

    def _why_return(self, lent: Lent) -> Literal["stop", "no_replica", "give_back", "max_lent", "verdict"] | None:
        books = self.books
        if books.stop_requested:
            return "stop"
        if not any(self.replicas.is_awake(name, epoch) for name, epoch in lent.woken.items()):
            return "no_replica"
        ready = len(books.ready)
        if ready >= min(lent.give_back_at, ready + len(books.in_flight) + books.startable):
            return "give_back"
        if lent.max_lent_s < 0:
            return "max_lent"
        return "verdict" if lent.wanted_back else None

    def _starved(self) -> bool:
        """Granted, home, waiting, and nobody but sleeping hybrids could generate what is missing."""
        books = self.books
        waits = self._waiting is not None and self._waiting.step == books.steps_done + 1 and books.batch is None
        possible = self.granted and self.home and self.boundary is None and not books.last_step_done
        work = len(books.in_flight) + books.startable > 0
        return waits and possible and work and not self.replicas.standalone_serves() and bool(self.replicas.wakeable())

    # --- what the shell watches --------------------------------------------------------------------------------------------------

    def outstanding(self) -> Sequence[Request]:
        return []

    def deadlines(self) -> Sequence[Deadline]:
        plan = self.books.plan
        if self.ended or plan is None:
            return []
        limits = plan.deadlines
        found = self._replica_deadlines()
        if not self._opened:
            found.append(Deadline("start", limits.start_s))
        elif not self.replicas.by_name:
            found.append(Deadline("no_replica", limits.no_replica_s))
        if self.boundary is not None and self._asks() and self._verdict is None and not self._verdict_missed:
            found.append(Deadline(f"verdict:{self.boundary}", limits.verdict_s))
        if self.lent is not None and self.swing is None and self.lent.max_lent_s > 0:
            found.append(Deadline(f"lent:{self.lent.started.swing}", self.lent.max_lent_s))
        return [deadline for deadline in found if deadline.key not in self._missed]

    def _replica_deadlines(self) -> list[Deadline]:
        plan = self.books.plan
        assert plan is not None
        limits = plan.deadlines
        found = [] if self.swing is None else self.swing.deadlines(limits, self.replicas)
        for name, epoch in self.replicas.killing:
            found.append(Deadline(f"kill:{name}:{epoch}", limits.kill_s))
        for replica in self.replicas.by_name.values():
            if replica.condemned:
                continue
            if replica.state == "starting":
                found.append(Deadline(f"boot:{replica.name}:{replica.epoch}", limits.start_s))
            if replica.updating is not None:
                version, revision = replica.updating
                found.append(Deadline(f"update:{replica.name}:{replica.epoch}:{version}.{revision}", limits.update_s))
            if self.requests.load(replica.name):
                count = self._finished.get(replica.name, 0)
                found.append(Deadline(f"generate:{replica.name}:{replica.epoch}:{count}", limits.generate_s))
        return found
