"""The controller's deadlines, and what a missed one means for a replica.

start, verdict, lent, no_replica      the run, the policy, the lend
archiver : EPOCH                      a lost one comes back, else the run ends (ending.py)
eval : VERSION                        the evaluation ends with what is scored (bus.evaluations)
boot, wake, abort, sleep, update, generate : … NAME : EPOCH      a replica that is late is killed
kill : NAME : EPOCH                   an exit that cannot be verified ends the run
yield, open, rollback, cut, reload    trainer and rollouter: only reported
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.books import Books
from bus.core import Deadline
from bus.events import DeadlineMissed, Event, GenerationFinished
from bus.requests import Requests
from services.controller.lent import Lent
from services.controller.replicas import Incarnation, Replicas
from services.controller.swing import Swing

MOST_MISSED = 1024
"""Missed deadlines that are remembered: more than can stand at a time, so that a long run's misses do not pile up."""


class Watch:
    """Names deadlines from the controller's folds; a missed one is not named again."""

    def __init__(self, books: Books, requests: Requests, replicas: Replicas) -> None:
        self._books = books
        self._requests = requests
        self._replicas = replicas
        self._missed: dict[str, None] = {}
        """Newest deadlines that were missed, of those that may still stand."""
        self.start_missed = False
        """The time in which everybody should have started is over."""
        self._finished: dict[str, int] = {}
        """Replica -> outcomes it has given, so that its progress can be watched."""

    def apply(self, event: Event) -> None:
        """Takes in one event."""
        if isinstance(event, GenerationFinished):
            self._finished[event.replica] = self._finished.get(event.replica, 0) + 1
        elif isinstance(event, DeadlineMissed):
            self.start_missed = self.start_missed or event.key == "start"
            self._missed[event.key] = None
            for oldest in list(self._missed)[:-MOST_MISSED]:
                del self._missed[oldest]

    def deadlines(self, opened: bool, asking: int | None, swing: Swing | None, lent: Lent | None) -> Sequence[Deadline]:
        """All that is to happen by when; `asking`: the boundary that waits for a verdict."""
        plan = self._books.plan
        assert plan is not None
        limits = plan.deadlines
        found = [deadline for deadline, _ in self._on_replicas()]
        if swing is not None:
            found += [deadline for deadline, _ in swing.deadlines(limits, self._replicas)]
        if not opened:
            found += [] if self.start_missed else [Deadline("start", limits.start_s)]
        elif not self._replicas.by_name:
            found.append(Deadline("no_replica", limits.no_replica_s))
        if asking is not None:
            found.append(Deadline(f"verdict:{asking}", limits.verdict_s))
        if lent is not None and swing is None and not lent.too_long:
            found.append(Deadline(f"lent:{lent.started.swing}", lent.started.max_lent_s))
        return [deadline for deadline in found if deadline.key not in self._missed]

    def is_late(self, key: str, swing: Swing | None) -> bool:
        """The deadline still stands: what it waits for has not happened meanwhile."""
        return key in self._late(swing)

    def condemn(self, key: str, swing: Swing | None) -> None:
        """The replica that a missed deadline names is to be killed, if the deadline still stands."""
        incarnation = self._late(swing).get(key)
        if incarnation is not None:
            self._replicas.condemn(*incarnation, f"{key.partition(':')[0]} took too long")

    def _late(self, swing: Swing | None) -> dict[str, Incarnation | None]:
        plan = self._books.plan
        assert plan is not None
        found = self._on_replicas()
        if swing is not None:
            found += swing.deadlines(plan.deadlines, self._replicas)
        return {deadline.key: incarnation for deadline, incarnation in found}

    def _on_replicas(self) -> list[tuple[Deadline, Incarnation | None]]:
        plan = self._books.plan
        assert plan is not None
        limits = plan.deadlines
        found: list[tuple[Deadline, Incarnation | None]] = [
            (Deadline(f"kill:{name}:{epoch}", limits.kill_s), (name, epoch)) for name, epoch in self._replicas.killing
        ]
        for replica in self._replicas.by_name.values():
            if replica.condemned:
                continue
            who = (replica.name, replica.epoch)
            at = f"{replica.name}:{replica.epoch}"
            if replica.state == "starting":
                found.append((Deadline(f"boot:{at}", limits.start_s), who))
            if replica.updating is not None:
                version, revision = replica.updating
                found.append((Deadline(f"update:{at}:{version}.{revision}", limits.update_s), who))
            if self._requests.load(replica.name):
                found.append((Deadline(f"generate:{at}:{self._finished.get(replica.name, 0)}", limits.generate_s), who))
        return found
