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
from bus.entry import Entry
from bus.evaluations import Evaluations
from bus.events import (
    BoundaryOpened,
    DeadlineMissed,
    DevicesReloaded,
    DevicesYielded,
    Event,
    RejectReason,
    RunEnded,
    SettingChanged,
    StepDone,
    SwitchDone,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
    WaitSamples,
)
from bus.requests import ANSWERING, Requests
from services.controller.boundary import Boundary
from services.controller.ending import ESSENTIAL, Ending
from services.controller.expected import Expected
from services.controller.lent import FORCED, Lent, amended
from services.controller.replicas import Replicas
from services.controller.stall import Stall
from services.controller.swing import Swing
from services.controller.watch import Watch

LendReason = Literal["verdict", "starved", "evaluation"]


class ControllerCore:
    """See `bus.core.Core`."""

    source = "controller"

    def __init__(self) -> None:
        self.books = Books()
        self.requests = Requests()
        self.replicas = Replicas()
        self.evaluations = Evaluations(self.books.settings)
        self.expected = Expected()
        self.boundary = Boundary()
        self.swing: Swing | None = None
        self.lent: Lent | None = None
        self.home = True
        self.granted = False
        self.ended = False
        self._watch = Watch(self.books, self.requests, self.replicas)
        self._stall = Stall(self.books, self.requests, self.replicas, self.evaluations)
        self._opened = False
        """Boundary 0 has been opened."""
        self._waiting: WaitSamples | None = None
        self._extra: tuple[int, SwitchRequested] | None = None
        """(position, event) of an accepted request in mid-cycle."""
        self._rejections: list[tuple[int, RejectReason]] = []
        self._swings = 0
        self._ending = Ending(self.books, self.replicas, self.evaluations)

    # --- apply -------------------------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        event = entry.event
        outcomes = self.requests.apply(entry)
        answering = type(event) in ANSWERING
        if not answering:
            self._apply_to_books(event)
            self.replicas.apply(entry)
            self.evaluations.apply(entry)
        if self.swing is not None:
            self.swing.apply(entry, self.replicas, self.requests, outcomes)
        self._watch.apply(event)
        self._stall.apply(event)
        if answering:
            return
        self._apply_to_boundary(entry.position, event)
        self._apply_to_devices(event)
        self._apply_to_run(event)
        self._ending.apply(entry)
        self.expected.apply(entry)

    def _apply_to_books(self, event: Event) -> None:
        if not isinstance(event, SettingChanged):
            self.books.apply(event)
            return
        asked = self._asks()
        self.books.apply(event)
        if self._asks() != asked:
            # A policy may not have seen it open, or sees it as closed: nobody is waited for.
            self.boundary.ask_nobody()

    def _apply_to_boundary(self, position: int, event: Event) -> None:
        match event:
            case BoundaryOpened():
                self._opened = True
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
        if not self._asks():
            return "not_asked"
        if not self.replicas.wakeable():
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

    def _apply_to_run(self, event: Event) -> None:
        match event:
            case DeadlineMissed():
                self._miss(event.key)
            case RunEnded():
                self.ended = True
            case _:
                pass

    def _miss(self, key: str) -> None:
        """Deadlines that act; those on trainer and rollouter (yield, reload, cut, open) are only reported."""
        what, _, rest = key.partition(":")
        match what:
            case "verdict":
                self.boundary.miss(rest)
            case "lent" if self.lent is not None and rest == str(self.lent.started.swing):
                self.lent.too_long = True
            case "no_replica":
                self._ending.miss_replica()
            case "archiver":
                self._ending.miss_archiver(rest)
            case "start" if not self._opened:
                self._ending.miss_start()
            case "stall":
                self._stall.miss(rest)
            case "kill" if self._watch.is_late(key, self.swing):
                self._ending.fail("kill_unverified", rest)
            case _:
                self._watch.condemn(key, self.swing)

    # --- decide ------------------------------------------------------------------------------------------------------------------

    def decide(self) -> Event | None:
        if self.ended or self.books.plan is None:
            return None
        return (
            self.replicas.decide()
            or self._ending.decide(self.swing)
            or self._say_stalled()
            or self._reject()
            or self._swing_on()
            or self._decide_boundary()
            or self._begin_swing()
        )

    def _say_stalled(self) -> Event | None:
        return self._stall.report(self.boundary, self.swing, self.home, self.granted) if self._stall.due else None

    def _reject(self) -> Event | None:
        for position, reason in self._rejections:
            return SwitchRejected(request=position, swing=0, reason=reason)
        if self._extra is not None and not self._asks():
            return SwitchRejected(request=self._extra[0], swing=0, reason="not_asked")
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
        if self.books.finished:
            return self._lend("evaluation", 0, 0.0, answers=version) if self._evaluates() else None
        if version is None:
            return self._grant_anew()
        if self.books.version < version:
            return None
        if self.boundary.verdict is not None:
            return self._follow(version, *self.boundary.verdict)
        if self._asks() and not self.boundary.given_up:
            return None
        if self._evaluates():
            return self._lend("evaluation", 0, 0.0, answers=version)
        return TrainGranted(version=version, reason=self.boundary.grant_reason if self._asks() else "static")

    def _may_open(self) -> bool:
        """Weights 0 are published and everybody has started, or those who have not had their time."""
        plan = self.books.plan
        assert plan is not None
        if self.books.version < 0 or self.books.last_step_done or not self.replicas.any_added():
            return False
        if not all(role in self._ending.started for role in ESSENTIAL):
            return False
        policy = "policy" in self._ending.started or not self._asks()
        return self._watch.start_missed or (policy and self.replicas.all_settled(plan.standalone + plan.hybrid))

    def _grant_anew(self) -> Event | None:
        """Devices home, no boundary open, no grant: after a swing, or at the start of a run whose boundaries are not asked."""
        if self.granted or self.books.last_step_done:
            return None
        if self._evaluates():
            return self._lend("evaluation", 0, 0.0, answers=None)
        return TrainGranted(version=self.books.version, reason=self.boundary.grant_reason if self._asks() else "static")

    def _follow(self, version: int, position: int, verdict: SwitchRequested) -> Event:
        lends = verdict.target == "rollout"
        if self._evaluates():
            return self._lend("evaluation", verdict.give_back_at if lends else 0, verdict.max_lent_s if lends else 0.0, answers=version)
        if not lends:
            return TrainGranted(version=version, reason="verdict")
        if not self._asks() or not self.replicas.wakeable():
            return SwitchRejected(request=position, swing=0, reason="no_hybrid" if self._asks() else "not_asked")
        return self._lend("verdict", verdict.give_back_at, verdict.max_lent_s, answers=version)

    def _evaluates(self) -> bool:
        """The newest version is to be evaluated, and nobody but sleeping hybrids could do it."""
        serves = self.replicas.standalone_serves() or self.books.stop_requested or self.evaluations.timed_out
        return self._evaluating() and not serves and bool(self.replicas.wakeable())

    def _evaluating(self) -> bool:
        current = self.evaluations.current
        return current is not None and current.version == self.books.version

    def _lend(self, reason: LendReason, give_back_at: int, max_lent_s: float, answers: int | None) -> Event:
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
            reason = self.lent.why_return(self.books, self.replicas, self._evaluating())
            return None if reason is None else SwitchStarted(swing=self._swings + 1, target="train", reason=reason)
        if self._extra is not None:
            return self._lend("verdict", self._extra[1].give_back_at, self._extra[1].max_lent_s, answers=None)
        if self._waiting is not None and self._starved(self._waiting):
            return self._lend("starved", self._waiting.need, 0.0, answers=None)
        return None

    def _starved(self, waiting: WaitSamples) -> bool:
        """Granted, home, waiting, and nobody but sleeping hybrids could generate what is missing."""
        books = self.books
        if self.replicas.standalone_serves() or not self.granted or not self.home or self.boundary.version is not None:
            return False
        waits = waiting.step == books.steps_done + 1 and books.batch is None and not books.last_step_done
        return waits and len(books.in_flight) + books.startable > 0 and bool(self.replicas.wakeable())

    # --- what the shell watches --------------------------------------------------------------------------------------------------

    def outstanding(self) -> Sequence[Request]:
        return []

    def deadlines(self) -> Sequence[Deadline]:
        if self.ended or self.books.plan is None:
            return []
        asking = self.boundary.version if self._asks() and self.boundary.is_asking else None
        found = self._watch.deadlines(self._opened, asking, self.swing, self.lent)
        return [*found, *self._ending.deadlines(), *self._stall_deadline(), *self._eval_deadline()]

    def _eval_deadline(self) -> Sequence[Deadline]:
        # Before that, hybrids that evaluate version 0 may wait for others to start.
        return self.evaluations.deadlines() if self._opened else []

    def _stall_deadline(self) -> Sequence[Deadline]:
        return [self._stall.deadline()] if self._opened and not self._stall.reported else []
