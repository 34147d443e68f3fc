"""Recomputes every decision of a log and every link of its chain.

    entries ─┬─▶ chain, dense positions, causes, epochs, emitters       (finds tampered facts)
             ├─▶ each core: recorded decisions against `decide`         (finds changed decisions; recorded wins, counting goes on)
             └─▶ invariants of the swing and the books at every position

An incarnation that was killed leaves a prefix of what it would have emitted: a decision may be missing only if nothing of that incarnation
follows it. Differences of incarnations that ran other code are listed apart and do not fail the verification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isclose

from bus.core import Core
from bus.entry import Entry
from bus.errors import SwingshiftError
from bus.events import Event, PolicyAttached, ServiceStarted
from bus.host import MAX_DECISIONS, own
from bus.recording import Row
from replay.envelopes import Envelopes
from replay.invariants import Invariants

CONFUSED = (SwingshiftError, AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a fold may raise on a log that cannot be. It is a finding, not a crash."""
Track = Callable[[Sequence[Entry], str], Iterable[Entry]]
"""(entries, what they are checked for) -> the same entries, while somebody watches how far the check is."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be. `position` is the entry where it shows (for a decision: its cause)."""

    position: int
    source: str
    what: str
    recorded: str = ""
    expected: str = ""

    def __str__(self) -> str:
        sides = f"\n  recorded: {self.recorded}\n  expected: {self.expected}" if self.recorded or self.expected else ""
        return f"position {self.position}, {self.source}: {self.what}{sides}"


@dataclass
class Report:
    """What a verification found. `passed` ignores the differences of other code."""

    entries: int = 0
    decisions: int = 0
    differences: list[Difference] = field(default_factory=list)
    other_code: list[Difference] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.differences


CoreFactory = Callable[[PolicyAttached | None], Core]
"""Makes a fresh core of one source; a policy's core is made from the PolicyAttached that began its incarnation."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One core to verify: its source, how to make it, and the code digest that this checkout has for it."""

    source: str
    make: CoreFactory
    code: Callable[[PolicyAttached | None], str]


def untracked(entries: Sequence[Entry], what: str) -> Iterable[Entry]:
    """Nobody watches."""
    return entries


def verify(entries: Sequence[Entry], subjects: Sequence[Subject], last_chain: str | None = None) -> Report:
    """Checks a whole log from position 1. `last_chain`: the last link as the run's summary has it; without it a cut tail is not found."""
    report = Report()
    check_envelopes(((Row.of(entry), entry) for entry in entries), report, last_chain)
    check_cores(entries, subjects, report)
    return report


def check_envelopes(rows: Iterable[tuple[Row, Entry | None]], report: Report, last_chain: str | None = None) -> None:
    """Positions, chain, causes, epochs and emitters. The entry is None for a row that cannot be read."""
    envelopes = Envelopes()
    for row, entry in rows:
        report.entries += 1
        report.differences.extend(Difference(row.position, row.source, fault) for fault in envelopes.take(row, entry))
    if last_chain is not None and envelopes.last_chain != last_chain:
        what = "the log ends elsewhere than its summary says: its tail was cut or changed"
        report.differences.append(Difference(envelopes.last_position, "log", what, envelopes.last_chain, last_chain))


def check_cores(entries: Sequence[Entry], subjects: Sequence[Subject], report: Report, track: Track = untracked) -> None:
    """Every core's decisions, and the invariants."""
    for subject in subjects:
        check = _CoreCheck(subject, entries, report)
        try:
            check.run(track(entries, subject.source))
        except CONFUSED as error:
            what = f"the core cannot follow this log: {type(error).__name__}: {error}"
            report.differences.append(Difference(check.position, subject.source, what))
    check_invariants(track(entries, "invariants"), report)


def check_invariants(entries: Iterable[Entry], report: Report) -> None:
    """What must hold at every position; after an entry that cannot be, the rest is not checked."""
    invariants = Invariants()
    for entry in entries:
        try:
            broken = invariants.apply(entry)
        except CONFUSED as error:
            what = f"the invariants cannot be followed: {type(error).__name__}: {error}"
            report.differences.append(Difference(entry.position, entry.source, what))
            return
        report.differences.extend(Difference(entry.position, entry.source, fault) for fault in broken)


class _CoreCheck:
    """Follows one core through a log."""

    def __init__(self, subject: Subject, entries: Sequence[Entry], report: Report) -> None:
        self._subject = subject
        self._entries = entries
        self._report = report
        self._answers: dict[int, list[Entry]] = {}
        for entry in entries:
            if entry.derived and entry.source == subject.source:
                self._answers.setdefault(entry.cause, []).append(entry)
        self._core = subject.make(None)
        self._epoch = 0
        self._same_code = True
        self._stopped: Difference | None = None
        """The first decision that this incarnation would have taken and that is not recorded."""
        self.position = 0
        """How far the check is."""

    def run(self, entries: Iterable[Entry]) -> None:
        for index, entry in enumerate(entries):
            self.position = entry.position
            if self._begins_incarnation(entry):
                self._begin(entry, index)
            if not (entry.derived and entry.source == self._subject.source):
                self._core.apply(entry)
            self._compare(entry.position)

    def _begins_incarnation(self, entry: Entry) -> bool:
        return entry.source == self._subject.source and isinstance(entry.event, ServiceStarted | PolicyAttached)

    def _begin(self, entry: Entry, index: int) -> None:
        attached = entry.event if isinstance(entry.event, PolicyAttached) else None
        if attached is not None:
            self._rebuild(attached, index)
        code = entry.event.code if isinstance(entry.event, ServiceStarted | PolicyAttached) else ""
        self._epoch = entry.epoch
        self._same_code = code == self._subject.code(attached)
        self._stopped = None

    def _rebuild(self, attached: PolicyAttached, index: int) -> None:
        """Another policy may be in charge from here on: its state is the rebuild of the log up to here."""
        self._core = self._subject.make(attached)
        for before in self._entries[:index]:
            if not (before.derived and before.source == self._subject.source):
                self._core.apply(before)
            for answer in self._answers.get(before.position, ()):
                self._core.apply(own(self._core, answer.event, before.position))

    def _compare(self, position: int) -> None:
        recorded = self._answers.get(position, [])
        for answer in recorded:
            self._report.decisions += 1
            expected = self._core.decide()
            if answer.epoch != self._epoch:
                self._add(position, f"a decision of epoch {answer.epoch} on an entry of epoch {self._epoch}", answer.event, expected)
            elif self._stopped is not None:
                self._note(self._stopped)
                self._stopped = None
            if expected is None or not same(answer.event, expected):
                self._add(position, f"{answer.event.kind} is not what the core decides", answer.event, expected)
            self._core.apply(own(self._core, answer.event, position))
        if self._epoch and self._stopped is None and len(recorded) < MAX_DECISIONS:
            expected = self._core.decide()
            if expected is not None:
                self._stopped = Difference(position, self._subject.source, "a decision is missing", "nothing", repr(expected))

    def _add(self, position: int, what: str, recorded: Event, expected: Event | None) -> None:
        self._note(Difference(position, self._subject.source, what, repr(recorded), repr(expected)))

    def _note(self, difference: Difference) -> None:
        (self._report.differences if self._same_code else self._report.other_code).append(difference)


def same(recorded: Event, expected: Event) -> bool:
    """Fields that decide are compared exactly, `evidence` to 1e-9 relative."""
    if recorded == expected:
        return True
    if type(recorded) is not type(expected):
        return False
    left, right = recorded.model_dump(), expected.model_dump()
    one, other = left.pop("evidence", None), right.pop("evidence", None)
    if left != right or one is None or other is None or one.keys() != other.keys():
        return False
    return all(isclose(one[key], other[key], rel_tol=1e-9, abs_tol=1e-12) for key in one)
