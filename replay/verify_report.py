"""What `swingshift replay verify` prints of what it found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from replay.differences import OTHER_CODE, USUAL_CAUSES, Difference, FieldDifference, Moment, Report
from replay.recorded import SUMMARY

MOST_FIELDS = 12
"""Fields that one difference shows; the rest is counted."""
LONGEST_VALUE = 200
"""Characters of one side of a field."""


def lines(folder: Path, report: Report, seconds: float, limit: int) -> Iterator[str]:
    """The whole report; of each sort of difference at most `limit` in full."""
    yield from _differences(folder, report.differences, report.num_differences, limit)
    yield from _other_code(folder, report, limit)
    rate = f" ({report.entries / seconds:,.0f} entries/s)" if seconds >= 1 else ""
    yield f"{folder}: {report.entries} entries, {report.decisions} decisions recomputed in {seconds:.1f} s{rate}"
    yield from _beside(report)
    if report.passed:
        yield _passed(folder, report)
    else:
        where = "at" if report.num_differences == 1 else "the first at"
        yield f"FAILED: {count(report.num_differences)}, {where} position {report.differences[0].position}"


def count(number: int) -> str:
    """`1 difference`, `2 differences`."""
    return "1 difference" if number == 1 else f"{number} differences"


def _passed(folder: Path, report: Report) -> str:
    without = "" if (folder / SUMMARY).exists() else f"; without a {SUMMARY} a cut tail would not be found"
    whose = " of this checkout's code" if report.num_other_code else ""
    return f"passed: the chain is whole, every decision{whose} is what its core decides, every invariant holds{without}"


def _beside(report: Report) -> Iterator[str]:
    if report.payloads or report.weights:
        yield f"{report.payloads} payloads and {report.weights} files of weights and checkpoints compared with their digests"
    if report.snapshots:
        yield f"{report.snapshots} snapshots compared with what the entries give"
    if report.unchecked_payloads:
        yield f"{report.unchecked_payloads} payloads are named by the entries and none are recorded here: not checked"


def _other_code(folder: Path, report: Report, limit: int) -> Iterator[str]:
    """Incarnations that ran other code, and what this checkout's would have done differently."""
    others = report.other_incarnations
    if not others:
        return
    yield f"other code: {len(others)} incarnations did not run the code of this checkout; {count(report.num_other_code)}"
    for other in others[:limit]:
        number = count(other.num_differences) if other.num_differences else "the same decisions"
        yield f"  {other.source}/{other.epoch} ran {other.recorded_code or 'unknown code'}, here is {other.our_code}: {number}"
    if len(others) > limit:
        yield f"  … and {len(others) - limit} more"
    yield from _differences(folder, report.other_code, report.num_other_code, limit)


def _differences(folder: Path, differences: Sequence[Difference], total: int, limit: int) -> Iterator[str]:
    explained: dict[str, None] = {}
    for difference in differences[:limit]:
        yield from _difference(folder, difference, causes=difference.sort not in explained)
        explained[difference.sort] = None
    if total > limit:
        all_kept = "; --limit 0 prints all" if total == len(differences) else f"; --limit 0 prints the first {len(differences)}"
        yield f"… and {total - limit} more{all_kept}"


def _difference(folder: Path, difference: Difference, causes: bool) -> Iterator[str]:
    yield str(difference)
    for field in difference.fields[:MOST_FIELDS]:
        yield f"  {_field(field)}"
    if len(difference.fields) > MOST_FIELDS:
        yield f"  … and {len(difference.fields) - MOST_FIELDS} more fields"
    moment = difference.moment
    if moment is not None:
        yield from _moment(folder, difference, moment)
    if causes:
        is_other = moment is not None and moment.recorded_code != moment.our_code
        yield "  usual causes:"
        yield from (f"    - {cause}" for cause in ((OTHER_CODE,) if is_other else USUAL_CAUSES[difference.sort]))


def _field(field: FieldDifference) -> str:
    return f"{field.path}: {_short(field.recorded) or '(not there)'} recorded, {_short(field.expected) or '(not there)'} expected"


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 1]}…"


def _moment(folder: Path, difference: Difference, moment: Moment) -> Iterator[str]:
    where = f"entry {moment.decided_at}, " if moment.decided_at else ""
    same = "the same as of this checkout" if moment.recorded_code == moment.our_code else f"this checkout's is {moment.our_code}"
    yield f"  decided by: {where}{difference.source}/{moment.epoch}, code {moment.recorded_code or 'unknown'}, {same}"
    if moment.state:
        yield "  the state before it:"
        yield from (f"    {line}" for line in moment.state)
    yield f"  look there: swingshift replay state {folder} --at {difference.position} --service {difference.source}"
