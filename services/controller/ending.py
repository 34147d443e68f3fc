"""When a run ends, and with which reason: it has done what was planned, or it cannot go on.

finished (and evaluated) | a service lost for good | a kill unverified | a redo that diverged | no replica | no memory | all samples fail
    └─▶ a swing that still runs ends in SwitchRejected(run_ended) ─▶ RunEnded(reason)
"""

from __future__ import annotations

from typing import Literal

from bus.books import Books
from bus.core import Deadline
from bus.entry import Entry, role_of
from bus.evaluations import Evaluations
from bus.events import Event, PolicyAttached, RedoDiverged, RolloutPaused, RunEnded, ServiceLost, ServiceStarted, SwitchRejected
from services.controller.failures import Failures
from services.controller.replicas import Replicas
from services.controller.swing import Swing

ESSENTIAL = ("trainer", "rollouter", "controller")
ARCHIVER = "archiver"
FailureReason = Literal["service_lost", "kill_unverified", "redo_diverged", "no_replicas", "memory", "failed"]


class Ending:
    """Fold of what ends a run. The first reason to fail counts."""

    def __init__(self, books: Books, replicas: Replicas, evaluations: Evaluations) -> None:
        self._books = books
        self._replicas = replicas
        self._evaluations = evaluations
        self._failures = Failures(books.settings)
        self._failure: tuple[FailureReason, str] | None = None
        self._lost_archiver: int | None = None
        """Epoch of an archiver that was lost and may come back."""
        self.started: dict[str, None] = {}
        """Roles that have had their first word."""

    def apply(self, entry: Entry) -> None:
        """Takes in one entry, after the other folds did."""
        event = entry.event
        self._failures.apply(event)
        match event:
            case ServiceStarted():
                self.started[role_of(entry.source)] = None
                if entry.source == ARCHIVER:
                    self._lost_archiver = None
            case PolicyAttached(mode="active"):
                self.started["policy"] = None
            case ServiceLost(restarting=False) if event.service in (*ESSENTIAL, ARCHIVER):
                self.fail("service_lost", f"{event.service}: {event.detail}")
            case ServiceLost() if event.service == ARCHIVER:
                self._lost_archiver = event.epoch
            case RolloutPaused(is_over_budget=True):
                self.fail("memory", f"{event.used_bytes} of {event.budget_bytes} bytes on the server are used (redis.memory_budget)")
            case RedoDiverged(action="stop"):
                self.fail("redo_diverged", f"version {event.version}")
            case _:
                pass
        if self._failures.verdict:
            self.fail("failed", self._failures.verdict)

    def fail(self, reason: FailureReason, detail: str) -> None:
        """The run cannot go on."""
        self._failure = self._failure or (reason, detail)

    def miss_replica(self) -> None:
        """The time in which a replica should have come back is over."""
        if not self._replicas.by_name and not self._books.finished:
            self.fail("no_replicas", "none came back in time")

    def miss_start(self) -> None:
        """The time in which everybody should have started is over."""
        missing = [role for role in ESSENTIAL if role not in self.started]
        if missing or self._books.version < 0:
            self.fail("failed", f"not started in time: {', '.join(missing) or 'weights 0'}")
        elif not self._replicas.any_added():
            self.fail("no_replicas", "none started in time")

    def miss_archiver(self, epoch: str) -> None:
        """The time in which a lost archiver should have come back is over: nothing is recorded, and nobody frees the server's memory."""
        if epoch == str(self._lost_archiver):
            self.fail("service_lost", f"{ARCHIVER}: its epoch {epoch} was lost and none came back in time (deadlines.archiver_s)")

    def deadlines(self) -> list[Deadline]:
        """What must come back by when."""
        plan = self._books.plan
        if self._lost_archiver is None or plan is None:
            return []
        return [Deadline(f"{ARCHIVER}:{self._lost_archiver}", plan.deadlines.archiver_s)]

    def decide(self, swing: Swing | None) -> Event | None:
        """The end, if it has come."""
        plan, books = self._books.plan, self._books
        assert plan is not None
        goes_on = self._failure is None and (not books.finished or self._evaluations.pending)
        if goes_on and (self._replicas.by_name or not self._replicas.all_given_up(plan.standalone + plan.hybrid)):
            return None
        if swing is not None:
            return SwitchRejected(request=swing.request, swing=swing.id, reason="run_ended")
        if self._failure is not None:
            return RunEnded(reason=self._failure[0], detail=self._failure[1])
        if not books.finished:
            return RunEnded(reason="no_replicas", detail="every replica was lost and none will be restarted")
        return RunEnded(reason=self._how_finished(plan.total_steps))

    def _how_finished(self, total_steps: int) -> Literal["completed", "stopped", "prompts_exhausted"]:
        if self._books.steps_done >= total_steps:
            return "completed"
        return "stopped" if self._books.stop_requested else "prompts_exhausted"
