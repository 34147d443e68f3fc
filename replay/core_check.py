"""Follows one service's core through a log, and compares what is recorded of it with what it decides. Recorded wins.

A policy's incarnation begins with the state that the whole log up to its `PolicyAttached` gives it: the cores of all policies that attach
under one source follow the log from its beginning, and only the one in charge is asked.

An incarnation that was killed leaves a prefix of what it would have emitted: a decision may be missing only if nothing of that incarnation
follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose, isnan

from bus.core import Core
from bus.entry import Entry
from bus.errors import CodecError, PolicyFailed, SwingshiftError
from bus.events import Event, PolicyAttached, ServiceStarted
from bus.host import MAX_DECISIONS, own
from bus.snapshot_table import core_code
from replay.differences import MOST_STATES, Difference, Incarnation, Moment, Report, Sort, field_differences
from replay.limit import LIMIT_S, ran_out_of_time, within_limit
from replay.lookahead import Attached, WithAnswers
from replay.snapshot_check import RecordedSnapshots, snapshot_differences
from replay.state_view import describe

CONFUSED = (SwingshiftError, AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a fold may raise on a log that cannot be. It is a finding, not a crash."""

NO_SNAPSHOTS = RecordedSnapshots()
SECOND_TIME = 0.1
"""The part of its time that a policy has which has used all of it up before: each of its incarnations does so again."""

CoreFactory = Callable[[PolicyAttached | None], Core]
"""Makes a fresh core of one source; a policy's core is made from the PolicyAttached that began its incarnation."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One core to verify: its source, how to make it, and the code digest that this checkout has for it."""

    source: str
    make: CoreFactory
    code: Callable[[PolicyAttached | None], str]
    ignores: frozenset[type[Event]] = frozenset()
    """Entries of these types change nothing in it, so it is not led through them."""
    limit_s: float = LIMIT_S
    """Processor time that a policy from a file has for one entry."""


class CoreCheck:
    """Feed it every entry with its decisions, in order."""

    def __init__(self, subject: Subject, attached: Sequence[Attached], report: Report, snapshots: RecordedSnapshots = NO_SNAPSHOTS) -> None:
        self._subject = subject
        self._source = subject.source
        self._report = report
        self._core = subject.make(None)
        self._policies = {_identity(event): subject.make(event) for source, event in attached if source == subject.source}
        """Those that will be in charge, or were, under this source, and the one that is; all of them follow."""
        self._led = [self._core, *self._policies.values()]
        """All who follow: those, and who is in charge before the first of them."""
        self._dead: list[Core] = []
        """Policies whose own code raised at an entry: so did that of their processes, and of each successor."""
        self._slow: list[Core] = []
        """Policies that did not come to an end when they were asked."""
        self._failed = ""
        """How this incarnation's own code failed when it was asked: its process ended there."""
        self._epoch = 0
        self._code = self._our_code = ""
        self._other: Incarnation | None = None
        """The incarnation, if its code is not this checkout's."""
        self._states_left = {True: MOST_STATES, False: MOST_STATES}
        """Differences that may still carry a state: of this checkout's code, and of other."""
        self._silent = False
        """Nothing has changed since the core, asked, had nothing to decide."""
        self._stopped: Difference | None = None
        """The first decision that this incarnation would have taken and that is not recorded."""
        self._confused = False
        self._snapshots = snapshots
        self._snapshot_positions = snapshots.positions(subject.source)
        self._attached: PolicyAttached | None = None

    def follow(self, entries: Sequence[WithAnswers]) -> None:
        """Takes in the next entries, each with the decisions that it led to, of any source."""
        if self._confused:
            return
        position, ignores, snapshots = 0, self._subject.ignores, self._snapshot_positions
        try:
            for entry, answers in entries:
                position = entry.position
                if self._silent and not answers and type(entry.event) in ignores and position not in snapshots:
                    continue
                if entry.source == self._source:
                    self._take_own(entry)
                else:
                    self._apply(entry)
                decided = self._compare(position, answers) if answers else 0
                if not self._silent and self._stopped is None and decided < MAX_DECISIONS:
                    self._look_on(position)
                if position in snapshots:
                    self._check_snapshot(entry)
        except CONFUSED as error:
            self._confused = True
            what = f"the core cannot follow this log: {type(error).__name__}: {error}"
            self._report.add(Difference(position, self._source, "confused", what))

    def _take_own(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, ServiceStarted | PolicyAttached):
            self._begin(entry.epoch, event)
        if not entry.derived:
            self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        self._silent = False
        for core in self._led:
            try:
                within_limit(core, self._subject.limit_s).apply(entry)
            except PolicyFailed as error:
                self._dead.append(core)
                if core is self._core:
                    self._failed = str(error)
        if self._dead:
            self._led = [core for core in self._led if core not in self._dead]

    def _decide(self) -> Event | None:
        """None also where the policy's own code raises, or does not end: its process ended there, and nothing of it may follow."""
        if self._failed or self._core in self._dead:
            return None
        limit_s = self._subject.limit_s * (SECOND_TIME if self._core in self._slow else 1.0)
        try:
            return within_limit(self._core, limit_s).decide()
        except PolicyFailed as error:
            self._failed = str(error)
            if ran_out_of_time(error):
                self._slow.append(self._core)
            return None

    def _begin(self, epoch: int, event: ServiceStarted | PolicyAttached) -> None:
        attached = event if isinstance(event, PolicyAttached) else None
        if attached is not None:
            self._core = self._policies[_identity(attached)]
            self._led = [core for core in self._policies.values() if core not in self._dead]
        self._epoch = epoch
        self._failed = ""
        self._attached = attached
        self._code, self._our_code = event.code, self._subject.code(attached)
        self._other = None
        if self._code != self._our_code:
            self._other = Incarnation(self._source, epoch, self._code, self._our_code)
            self._report.other_incarnations.append(self._other)
        self._stopped = None
        self._silent = False

    def _compare(self, position: int, answers: Sequence[Entry]) -> int:
        """Compares and applies the decisions of this source among `answers`; returns how many there are."""
        decided = 0
        for answer in answers:
            if answer.source != self._source:
                continue
            decided += 1
            expected = self._decide()
            if answer.epoch != self._epoch:
                what = f"a decision of epoch {answer.epoch} on an entry of epoch {self._epoch}"
                self._note(self._difference(position, "decision", what, answer, expected))
            elif self._stopped is not None:
                self._note(self._stopped)
                self._stopped = None
            if expected is None or not same(answer.event, expected):
                why = f": before it, its own code failed ({self._failed})" if self._failed else ""
                what = f"{answer.event.kind} is not what the core decides{why}"
                self._note(self._difference(position, "decision", what, answer, expected))
            self._apply(own(self._core, answer.event, position))
        self._report.decisions += decided
        return decided

    def _look_on(self, position: int) -> None:
        """Nothing more is recorded for this cause: the core, too, should have nothing more to decide."""
        if not self._epoch:
            return
        expected = self._decide()
        self._silent = expected is None
        if expected is not None:
            self._stopped = self._difference(position, "missing", "a decision is missing", None, expected)

    def _check_snapshot(self, entry: Entry) -> None:
        """The state that is kept of this place is the one that the entries give, if it is of this code and of this log."""
        code = core_code(self._our_code, self._attached)
        try:
            snapshot = self._snapshots.get(self._source, code, entry.position)
            if snapshot is None:
                return
            fields = snapshot_differences(snapshot, self._core, self._subject.make(self._attached))
        except CodecError:
            return  # of another format, or damaged: nobody takes it
        self._report.snapshots += 1
        if fields:
            what = "the snapshot that is kept here is not the state that the entries give"
            self._report.add(Difference(entry.position, self._source, "snapshot", what, fields=fields))

    def _difference(self, position: int, sort: Sort, what: str, recorded: Entry | None, expected: Event | None) -> Difference:
        moment = Moment(
            decided_at=0 if recorded is None else recorded.position,
            epoch=self._epoch,
            recorded_code=self._code,
            our_code=self._our_code,
            state=_state(self._core) if self._states_left[self._other is None] else (),
        )
        return Difference(
            position,
            self._source,
            sort,
            what,
            recorded="nothing" if recorded is None else repr(recorded.event),
            expected="nothing" if expected is None else repr(expected),
            fields=() if recorded is None or expected is None else field_differences(recorded.event, expected),
            moment=moment,
        )

    def _note(self, difference: Difference) -> None:
        self._states_left[self._other is None] = max(0, self._states_left[self._other is None] - 1)
        if self._other is None:
            self._report.add(difference)
        else:
            self._other.num_differences += 1
            self._report.add_other_code(difference)


def _state(core: Core) -> tuple[str, ...]:
    try:
        return tuple(describe(core))
    except CONFUSED as error:
        return (f"it cannot be shown: {type(error).__name__}: {error}",)


def _identity(attached: PolicyAttached) -> str:
    """The same for two that have the same state after the same log."""
    return f"{attached.name} {sorted(attached.params.items())} {attached.mode} {attached.source}"


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
    return all(isclose(one[key], other[key], rel_tol=1e-9, abs_tol=1e-12) or (isnan(one[key]) and isnan(other[key])) for key in one)
