"""The single arbiter of the trainer's devices: answers boundaries, runs the swing, watches who is alive, ends the run.

    boundary v ─ verdict | deadline ─▶ WeightsPublished(v) ─▶ do not lend, or cannot ─▶ TrainGranted        (boundary.py)
                                                          └─▶ lend ─▶ SwitchStarted(rollout) ─▶ …           (swing.py)
    lent ─ enough ready | too long | nobody awake | asked for ─▶ SwitchStarted(train) ─▶ … ─▶ TrainGranted   (lent.py)

Order of what is decided on an entry: losses and kills, the end of the run, rejections, the running swing, the boundary, a new swing.
Every rejection is said; a request that cannot be followed when it arrives is never queued.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    PolicyAttached,
    RedoDiverged,
    RejectReason,
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
from services.controller.boundary import Boundary
from services.controller.lent import FORCED, Lent, amended
from services.controller.replicas import Replicas
from services.controller.swing import Swing
from services.controller.watch import Watch

ESSENTIAL = ("trainer", "rollouter", "controller")
Failure = tuple[Literal["service_lost", "kill_unverified", "redo_diverged", "no_replicas", "failed"], str]


class ControllerCore:
    """See `bus.core.Core`."""

    source = "controller"

    def __init__(self) -> None:
        self.books = Books()
        self.requests = Requests()
        self.replicas = Replicas()
        self.boundary = Boundary()
        self.swing: Swing | None = None
        self.lent: Lent | None = None
        self.home = True
        self.granted = False
        self.ended = False
        self._watch = Watch(self.books, self.requests, self.replicas)
        self._opened = False
        """Boundary 0 has been opened."""
        self._waiting: WaitSamples | None = None
        self._extra: tuple[int, SwitchRequested] | None = None
        """(position, event) of an accepted request in mid-cycle."""
        self._rejections: list[tuple[int, RejectReason]] = []
        self._swings = 0
        self._started: dict[str, None] = {}
        self._failure: Failure | None = None

    # --- apply -------------------------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        event = entry.event
        self.books.apply(event)
        outcomes = self.requests.apply(entry)
        self.replicas.apply(entry)
        if self.swing is not None:
            self.swing.apply(entry, self.replicas, self.requests, outcomes)
        self._watch.apply(event)
        self._apply_to_boundary(entry.position, event)
        self._apply_to_devices(event)
        self._apply_to_services(entry, event)

    def _apply_to_boundary(self, position: int, event: Event) -> None:
        match event:
            case BoundaryOpened():
                self._opened = True
                if self._asks():
                    self.boundary.open(event.version)
            case StepDone():
                self._waiting = None
                if event.is_boundary:
                    self.granted = False
                    if not self.books.last_step_done:
                        self.boundary.open(event.version + 1)
            case WaitSamples():
                self._waiting = event
            case TrainGranted():
                self.granted = True
                self._waiting = None
                self.boundary.close()
            case SwitchRequested():
                reason = self._hear(position, event)
                if reason is not None:
                    self._rejections.append((position, reason))
            case SwitchRejected():
                self._note_rejection(event)
            case _:
                pass

    def _asks(self) -> bool:
        """Boundaries are asked in this run."""
        plan = self.books.plan
        return plan is not None and plan.use_dynamic_resource_scheduling and len(plan.hybrid) > 0

    def _note_rejection(self, event: SwitchRejected) -> None:
        self._rejections = [waiting for waiting in self._rejections if waiting[0] != event.request]
        if self._extra is not None and self._extra[0] == event.request:
            self._extra = None
        if event.swing == 0:
            self.boundary.reject(event.request)
        elif self.swing is not None and event.swing == self.swing.id:
            self.boundary.grant_reason = "rejected"
            self.swing = None

    def _hear(self, position: int, event: SwitchRequested) -> RejectReason | None:
        """Takes a request of the policy, or says why it cannot be followed."""
        if event.amends is not None:
            return self._amend(event)
        if event.answers is not None:
            return self.boundary.answer(position, event)
        if self.boundary.version is not None or self.swing is not None or self._extra is not None:
            return "busy"
        return self._take_back() if event.target == "train" else self._take_extra(position, event)

    def _amend(self, event: SwitchRequested) -> RejectReason | None:
        swing, lent = self.swing, self.lent
        if swing is None and lent is not None and lent.started.swing == event.amends:
            lent.started = amended(lent.started, event)
        elif swing is not None and swing.id == event.amends and swing.started.target == "rollout":
            swing.started = amended(swing.started, event)
        else:
            return "late"
        return None

    def _take_back(self) -> RejectReason | None:
        if self.lent is None:
            return "not_lent"
        if self.lent.started.reason in FORCED:
            return "waiting_samples"
        self.lent.wanted_back = True
        return None

    def _take_extra(self, position: int, event: SwitchRequested) -> RejectReason | None:
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
        if event.answers is not None:
            request = self.boundary.verdict[0] if self.boundary.verdict is not None else 0
            self.boundary.close()
        elif self._extra is not None:
            request = self._extra[0]
        self._extra = None
        self.swing = Swing(event, request, "yield" if event.target == "rollout" else "cut")
        if self.lent is not None and event.target == "train":
            self.swing.woken = self.lent.woken

    def _finish(self, event: SwitchDone) -> None:
        swing, self.swing = self.swing, None
        self.lent = Lent(swing.started, swing.woken) if swing is not None and event.target == "rollout" else None

    def _apply_to_services(self, entry: Entry, event: Event) -> None:
        match event:
            case ServiceStarted():
                self._started[role_of(entry.source)] = None
            case PolicyAttached(mode="active"):
                self._started["policy"] = None
            case ServiceLost(restarting=False) if event.service in ESSENTIAL:
                self._fail("service_lost", f"{event.service}: {event.detail}")
            case RedoDiverged(action="stop"):
                self._fail("redo_diverged", f"version {event.version}")
            case DeadlineMissed():
                self._miss(event.key)
            case RunEnded():
                self.ended = True
            case _:
                pass

    def _fail(self, reason: Literal["service_lost", "kill_unverified", "redo_diverged", "no_replicas", "failed"], detail: str) -> None:
        self._failure = self._failure or (reason, detail)

    def _miss(self, key: str) -> None:
        """Deadlines that act; those on trainer and rollouter (yield, reload, cut, open) are only reported."""
        what, _, rest = key.partition(":")
        match what:
            case "verdict":
                self.boundary.miss(rest)
            case "lent" if self.lent is not None and rest == str(self.lent.started.swing):
                self.lent.too_long = True
            case "no_replica" if not self.replicas.by_name:
                self._fail("no_replicas", "none came back in time")
            case "start" if not self._opened:
                self._miss_start()
            case "kill" if self._watch.is_late(key, self.swing):
                self._fail("kill_unverified", rest)
            case _:
                self._watch.condemn(key, self.swing)

    def _miss_start(self) -> None:
        missing = [role for role in ESSENTIAL if role not in self._started]
        if missing or self.books.version < 0:
            self._fail("failed", f"not started in time: {', '.join(missing) or 'weights 0'}")
        elif not self.replicas.any_added():
            self._fail("no_replicas", "none started in time")

    # --- decide ------------------------------------------------------------------------------------------------------------------

    def decide(self) -> Event | None:
        if self.ended or self.books.plan is None:
            return None
        return self.replicas.decide() or self._end() or self._reject() or self._swing_on() or self._decide_boundary() or self._begin_swing()

    def _end(self) -> Event | None:
        given_up = self.replicas.all_given_up(self._configured())
        if self._failure is None and not self.books.finished and not given_up:
            return None
        if self.swing is not None:
            return SwitchRejected(request=self.swing.request, swing=self.swing.id, reason="run_ended")
        if self._failure is not None:
            return RunEnded(reason=self._failure[0], detail=self._failure[1])
        if not self.books.finished:
            return RunEnded(reason="no_replicas", detail="every replica was lost and none will be restarted")
        return RunEnded(reason=self._how_finished())

    def _how_finished(self) -> Literal["completed", "stopped", "prompts_exhausted"]:
        plan = self.books.plan
        assert plan is not None
        if self.books.steps_done >= plan.total_steps:
            return "completed"
        return "stopped" if self.books.stop_requested else "prompts_exhausted"

    def _configured(self) -> tuple[str, ...]:
        plan = self.books.plan
        assert plan is not None
        return plan.standalone + plan.hybrid

    def _reject(self) -> Event | None:
        for position, reason in self._rejections:
            return SwitchRejected(request=position, swing=0, reason=reason)
        if self._extra is not None and (self.boundary.version is not None or not self.home or not self.granted):
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
        version = self.boundary.version
        if version is None:
            return self._grant_anew()
        if self.books.version < version:
            return None
        if not self._asks():
            return TrainGranted(version=version, reason="static")
        if self.boundary.verdict is not None:
            return self._follow(version, *self.boundary.verdict)
        return TrainGranted(version=version, reason=self.boundary.grant_reason) if self.boundary.given_up else None

    def _may_open(self) -> bool:
        """Weights 0 are published and everybody has started, or those who have not had their time."""
        if self.books.version < 0 or self.books.last_step_done or not self.replicas.any_added():
            return False
        if not all(role in self._started for role in ESSENTIAL):
            return False
        policy = "policy" in self._started or not self._asks()
        return self._watch.start_missed or (policy and self.replicas.all_settled(self._configured()))

    def _grant_anew(self) -> Event | None:
        """Devices home, no boundary open, no grant: after a swing, or at the start of a run whose boundaries are not asked."""
        if self.granted or self.books.last_step_done:
            return None
        return TrainGranted(version=self.books.version, reason=self.boundary.grant_reason if self._asks() else "static")

    def _follow(self, version: int, position: int, verdict: SwitchRequested) -> Event:
        if verdict.target == "train":
            return TrainGranted(version=version, reason="verdict")
        if not self.replicas.wakeable():
            return SwitchRejected(request=position, swing=0, reason="no_hybrid")
        return self._lend("verdict", verdict.give_back_at, verdict.max_lent_s, answers=version)

    def _lend(self, reason: Literal["verdict", "starved"], give_back_at: int, max_lent_s: float, answers: int | None) -> Event:
        plan = self.books.plan
        assert plan is not None
        return SwitchStarted(
            swing=self._swings + 1, target="rollout", reason=reason, answers=answers,
            give_back_at=give_back_at, max_lent_s=max_lent_s or plan.max_lent_s,
        )  # fmt: skip

    def _begin_swing(self) -> Event | None:
        if self.swing is not None:
            return None
        if self.lent is not None:
            reason = self.lent.why_return(self.books, self.replicas)
            return None if reason is None else SwitchStarted(swing=self._swings + 1, target="train", reason=reason)
        if self._extra is not None:
            return self._lend("verdict", self._extra[1].give_back_at, self._extra[1].max_lent_s, answers=None)
        if self._waiting is not None and self._starved(self._waiting):
            return self._lend("starved", self._waiting.need, 0.0, answers=None)
        return None

    def _starved(self, waiting: WaitSamples) -> bool:
        """Granted, home, waiting, and nobody but sleeping hybrids could generate what is missing."""
        books = self.books
        waits = waiting.step == books.steps_done + 1 and books.batch is None
        possible = self.granted and self.home and self.boundary.version is None and not books.last_step_done
        work = len(books.in_flight) + books.startable > 0
        return waits and possible and work and not self.replicas.standalone_serves() and bool(self.replicas.wakeable())

    # --- what the shell watches --------------------------------------------------------------------------------------------------

    def outstanding(self) -> Sequence[Request]:
        return []

    def deadlines(self) -> Sequence[Deadline]:
        if self.ended or self.books.plan is None:
            return []
        asking = self.boundary.version if self._asks() and self.boundary.is_asking else None
        return self._watch.deadlines(self._opened, asking, self.swing, self.lent)
