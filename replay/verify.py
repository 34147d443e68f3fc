"""Recomputes every decision of a log and every link of its chain, in one pass.

    entries ─┬─▶ chain, dense positions, causes, epochs, emitters       (finds tampered facts)
             ├─▶ each core: recorded decisions against `decide`         (finds changed decisions; recorded wins, counting goes on)
             └─▶ invariants of the swing and the books at every position

Differences of incarnations that ran other code are listed apart and do not fail the verification.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from bus.entry import Entry
from bus.recording import Row
from replay.core_check import CONFUSED, NO_SNAPSHOTS, CoreCheck, Subject
from replay.differences import LOG, Difference, Report
from replay.envelopes import Envelopes
from replay.invariants import Invariants
from replay.lookahead import Outline, WithAnswers, with_answers
from replay.snapshot_check import RecordedSnapshots

BATCH = 128
"""Entries that one core is led through before the next core is: alternating at each would cost a third of the speed."""


def verify(entries: Sequence[Entry], subjects: Sequence[Subject], last_chain: str | None = None) -> Report:
    """Checks a whole log from position 1. `last_chain`: the last link as the run's summary has it; without it a cut tail is not found."""
    report, envelopes = Report(), Envelopes()
    check_cores(_checked(entries, envelopes, report), Outline.of(entries), subjects, report)
    check_end(envelopes, report, last_chain)
    report.differences.sort(key=lambda difference: difference.position)
    return report


def _checked(entries: Iterable[Entry], envelopes: Envelopes, report: Report) -> Iterator[Entry]:
    for entry in entries:
        envelopes.check([Row.of(entry)], [entry], report)
        yield entry


def check_end(envelopes: Envelopes, report: Report, last_chain: str | None) -> None:
    """Whether the log ends where its summary says."""
    if last_chain is not None and envelopes.last_chain != last_chain:
        what = "the log ends elsewhere than its summary says: its tail was cut or changed"
        report.add(Difference(envelopes.last_position, LOG, "tail", what, envelopes.last_chain, last_chain))


def check_cores(
    entries: Iterable[Entry], outline: Outline, subjects: Sequence[Subject], report: Report, snapshots: RecordedSnapshots = NO_SNAPSHOTS
) -> None:
    """Every core's decisions, and the invariants, while `entries` are read once."""
    checks: list[CoreCheck | _InvariantsCheck] = [CoreCheck(subject, outline.attached, report, snapshots) for subject in subjects]
    checks.append(_InvariantsCheck(report))
    source = with_answers(entries, outline.last_answer)
    while batch := list(islice(source, BATCH)):
        for check in checks:
            check.follow(batch)


class _InvariantsCheck:
    """What must hold at every position; after an entry that cannot be, the rest is not checked."""

    def __init__(self, report: Report) -> None:
        self._invariants = Invariants()
        self._report = report
        self._confused = False

    def follow(self, entries: Sequence[WithAnswers]) -> None:
        """Takes in the next entries."""
        for entry, _ in entries:
            if self._confused:
                return
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        try:
            broken = self._invariants.apply(entry)
        except CONFUSED as error:
            self._confused = True
            what = f"the invariants cannot be followed: {type(error).__name__}: {error}"
            self._report.add(Difference(entry.position, entry.source, "confused", what))
            return
        for fault in broken:
            self._report.add(Difference(entry.position, entry.source, "invariant", fault))
