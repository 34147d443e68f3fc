"""Nothing moves: noticing it, and saying who waits for what.

What moves a run on is counted; while the count stays the same a deadline runs. It only reports: what must not last has its own deadline
that acts (`services.controller.watch`). Training and long answers may well take longer, then the report names them.
"""

from __future__ import annotations

from bus.books import Books
from bus.core import Deadline
from bus.evaluations import Evaluations
from bus.events import (
    BatchFormed,
    CheckpointSaved,
    EvalDone,
    EvalScored,
    Event,
    GenerationFinished,
    ReplicaAdded,
    SampleDropped,
    SampleReady,
    Stalled,
    StepDone,
    SwitchDone,
    SwitchRejected,
    TrainGranted,
    WeightsPublished,
)
from bus.requests import Requests
from services.controller.boundary import Boundary
from services.controller.replicas import Replicas
from services.controller.swing import Swing

KEY = "stall"
MAX_NAMED = 16
"""Samples that one report names; the rest is counted."""

_MOVES = frozenset({
    BatchFormed, CheckpointSaved, EvalDone, EvalScored, ReplicaAdded, SampleDropped, SampleReady, StepDone, SwitchDone, SwitchRejected,
    TrainGranted, WeightsPublished,
})  # fmt: skip


class Stall:
    """Fold of what moves. `due`: the deadline has passed and nobody has said so yet."""

    def __init__(self, books: Books, requests: Requests, replicas: Replicas, evaluations: Evaluations) -> None:
        self._books = books
        self._requests = requests
        self._replicas = replicas
        self._evaluations = evaluations
        self._moves = 0
        self.due = False
        self.reported = False
        """Its deadline has passed, and nothing has moved since."""

    def apply(self, event: Event) -> None:
        """Takes in one event."""
        if type(event) in _MOVES or (isinstance(event, GenerationFinished) and event.outcome in ("stop", "length")):
            self._moves += 1
            self.due = self.reported = False
        elif isinstance(event, Stalled):
            self.due = False

    def miss(self, rest: str) -> None:
        """The deadline `stall:REST` has passed."""
        if rest == str(self._moves):
            self.due = self.reported = True

    def deadline(self) -> Deadline:
        """What must move by when."""
        plan = self._books.plan
        assert plan is not None
        return Deadline(f"{KEY}:{self._moves}", plan.deadlines.stall_s)

    def report(self, boundary: Boundary, swing: Swing | None, home: bool, granted: bool) -> Stalled:
        """Who waits for what."""
        books = self._books
        assert books.plan is not None
        waiting = [*self._on_devices(boundary, swing, home, granted), *self._on_samples()]
        return Stalled(have=len(books.ready), need=books.plan.required_samples, waiting_on=tuple(waiting))

    def _on_devices(self, boundary: Boundary, swing: Swing | None, home: bool, granted: bool) -> list[str]:
        books = self._books
        found = []
        if swing is not None:
            found.append(f"swing {swing.id} to {swing.started.target}: phase {swing.phase}")
        if boundary.version is not None:
            what = "its verdict, from the policy" if boundary.is_asking else "its answer to be followed"
            found.append(f"boundary {boundary.version}: {what if books.version >= boundary.version else 'its weights, from the trainer'}")
        if books.batch is not None:
            found.append(f"step {books.batch.step}: being trained")
        elif home and granted and not books.last_step_done:
            found.append(f"step {books.steps_done + 1}: samples")
        evaluated, pinned = self._evaluations.current, self._evaluations.pinned
        if evaluated is not None:
            what = "a replica" if pinned is None else f"its answers, from {pinned.replica}, or their rewards"
            found.append(f"evaluation of version {evaluated.version}: {what}")
        if not self._replicas.by_name:
            found.append("generation: no replica is there")
        if books.room == 0 and not books.in_flight:
            found.append(f"generation: the staleness limit of {books.limit} samples is reached")
        return found

    def _on_samples(self) -> list[str]:
        where: dict[int, list[str]] = {}
        for name, requests in self._requests.open.items():
            for request in requests.values():
                where.setdefault(request.sample, []).append(f"{request.request} on {name}")
        samples = list(self._books.in_flight)
        found = [
            f"sample {sample}: {', '.join(where[sample]) if sample in where else 'a replica, or its reward'}"
            for sample in samples[:MAX_NAMED]
        ]
        return found if len(samples) <= MAX_NAMED else [*found, f"{len(samples) - MAX_NAMED} more samples"]
