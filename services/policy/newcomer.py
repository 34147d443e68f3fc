"""A policy that catches up with a run before it counts: its core follows the log without an epoch, and appends nothing.

    long over ─▶ settled: applied, own decisions right after their cause ─▶ held: too new to know all decisions on it ─▶ the log's end
                                                                             └─ finish: the log ends at its own PolicyAttached

Its state must be the rebuild of the log up to its PolicyAttached, which puts decisions of its predecessor behind their causes. Those come a
little later, so newer entries are held until nothing can come for them any more: at a decision for a later entry, and, as good as always,
some time after them. Where that was wrong, it is Overtaken and starts anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy

from bus.codec import encode
from bus.entry import Entry
from bus.errors import CoreError
from bus.events import Event
from bus.host import check_emitter, own
from bus.requests import ANSWERING
from policies.view import Boundary, ScheduleView
from services.policy.core import PolicyCore

MAX_PAST_TRIALS = 200
"""Boundaries of the past that are answered in trial."""
TryOut = Callable[[PolicyCore], object]


class Overtaken(Exception):
    """A decision came for an entry that was taken for settled: the state is not the rebuild, and must be made anew."""


class Newcomer:
    """One core on its way to the log's end. `try_out` is called at each boundary it sees open, and raises if the answer will not do."""

    def __init__(self, core: PolicyCore, try_out: TryOut) -> None:
        self.core = core
        self.position = 0
        """Entries up to here were taken."""
        self.decided_at: dict[str, int] = {}
        """Kind -> position of the newest decision of that kind under this source."""
        self._try_out = try_out
        self._past_trials = 0
        self._settled = 0
        """The core has these entries, and all decisions on them."""
        self._read_ahead = (0, 0)
        """(up to where decisions were read, up to where entries were applied) by `warm_up`."""
        self._held: deque[Entry] = deque()
        self._decisions: deque[Entry] = deque()
        """Not applied yet, in order of their causes."""
        self._newest_cause = 0

    def restored(self, position: int, decided_at: dict[str, int]) -> None:
        """The core has the state of a snapshot at `position`."""
        self.position = self._settled = self._newest_cause = position
        self.decided_at.update(decided_at)

    def warm_up(self, entries: Iterable[Entry], decisions: Iterable[Entry], known: int) -> None:
        """Takes what is long over: `entries`, and the own decisions up to position `known`, which are ahead of them."""
        after, ahead = self._settled, iter(decisions)
        decision = next(ahead, None)
        for entry in entries:
            while decision is not None and decision.cause <= entry.position:
                if decision.cause > after:
                    self._note(decision)
                decision = next(ahead, None)
            self._step(entry, trial=self._past_trials < MAX_PAST_TRIALS)
            self.position = entry.position
        self._settled = self.position
        self._read_ahead = (known, self.position)

    def take(self, entries: Sequence[Entry]) -> None:
        """Takes the next entries, as they come. Raises Overtaken."""
        for entry in entries:
            self.position = entry.position
            if entry.derived and entry.source == self.core.source:
                self._take_decision(entry)
            elif type(entry.event) not in ANSWERING:
                self._held.append(entry)
        self.settle(self._newest_cause - 1)

    def settle(self, up_to: int, *, trial: bool = True) -> None:
        """Nothing more will be decided on entries up to this position."""
        while self._held and self._held[0].position <= up_to:
            self._step(self._held.popleft(), trial=trial)
        self._decide_through(up_to)
        self._settled = max(self._settled, up_to)

    def finish(self) -> None:
        """The log ends here for the predecessor: it was fenced."""
        self.settle(self.position, trial=False)

    def _take_decision(self, entry: Entry) -> None:
        read, applied = self._read_ahead
        if entry.position <= read and entry.cause <= applied:
            return
        if entry.cause <= self._settled:
            raise Overtaken(f"{entry.event.kind}, entry {entry.position}, was decided on entry {entry.cause}, {self._settled} are settled")
        self._note(entry)

    def _note(self, decision: Entry) -> None:
        if decision.cause < self._newest_cause:
            raise CoreError(
                f"{self.core.source} decided {decision.event.kind}, entry {decision.position}, on entry {decision.cause}, "
                f"but had decided on entry {self._newest_cause} before: the log was not written by swingshift, or was changed"
            )
        self._newest_cause = decision.cause
        self._decisions.append(decision)
        self.decided_at[decision.event.kind] = decision.position

    def _step(self, entry: Entry, *, trial: bool) -> None:
        """Applies one entry, and the decisions on it."""
        core = self.core
        self._decide_through(entry.position - 1)
        if entry.derived and entry.source == core.source:
            return
        was_open = core.view.is_open
        core.apply(entry)
        if trial and core.view.is_open and not was_open:
            self._past_trials += 1
            self._try_out(core)
        self._decide_through(entry.position)

    def _decide_through(self, position: int) -> None:
        while self._decisions and self._decisions[0].cause <= position:
            decision = self._decisions.popleft()
            self.core.apply(own(self.core, decision.event, decision.cause))


def answer_in_trial(core: PolicyCore) -> Event | None:
    """What the core would append now, which can be appended. Raises PolicyFailed, ValidationError, CodecError, CoreError."""
    event = core.decide()
    if event is not None:
        check_emitter(core.source, event)
        encode(event)
    return event


def made_up_boundary(view: ScheduleView) -> ScheduleView:
    """The view as it might be at the next boundary, if that came now: a run may be asked for another policy before its first one."""
    made, shape, books = deepcopy(view), view.shape, view.books
    version = 0 if view.boundary is None else view.boundary.version + 1
    made.boundary = Boundary(version, books.generated, len(books.ready), len(books.in_flight))
    made.is_open = True
    # At the end of a cycle all its steps have been done.
    missing = shape.trigger_parameter_sync_step - len(made.wait_s) if version else 0
    made.wait_s += [0.0] * missing
    made.wait_n += [0] * missing
    return made
