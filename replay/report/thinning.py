"""Keeps the page small whatever the run's length: what is below the resolution of any screen is gathered, and sums stay what they were.

intervals    those that lie whole within one cell of time are sorted, so that each class is there once; sums stay
quantities   of each cell the first, the smallest, the largest and the last value
curves       of so many steps in a row the mean, and the smallest and the largest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from services.monitor.classes import CLASSES, Class

MOST_INTERVALS = 16_384
"""Of a lane; some times as many as a screen has columns, to be looked at closer."""
MOST_CHANGES = 8_192
"""Of a quantity."""
MOST_POINTS = 2_048
"""Of a curve."""

Interval = tuple[int, Class | None]
"""When it begins, and what goes on from then to the next one."""
Change = tuple[int, int | None]
"""When it was, and what the quantity is from then on; None: there is none."""


def thin_intervals(intervals: Sequence[Interval], end: int, most: int = MOST_INTERVALS) -> list[Interval]:
    """At most `most` of them. A cell begins with a 4096th of the time, and doubles until they are few enough."""
    found = list(intervals)
    cell = max(1, (end - found[0][0]) // 4096) if found else 1
    while len(found) > max(most, len(CLASSES)):
        found = _gather(found, end, cell)
        cell *= 2
    return found


def _gather(intervals: Sequence[Interval], end: int, cell: int) -> list[Interval]:
    gathered: list[Interval] = []
    sums: dict[Class | None, int] = {}
    where = 0
    stops = [*(start for start, _ in intervals[1:]), end]
    for (start, doing), stop in zip(intervals, stops, strict=True):
        within = start // cell == max(start, stop - 1) // cell
        if sums and (not within or start // cell != where // cell):
            _lay(sums, where, gathered)
        if not within:
            _add(gathered, start, doing)
            continue
        if not sums:
            where = start
        sums[doing] = sums.get(doing, 0) + stop - start
    _lay(sums, where, gathered)
    return gathered


def _lay(sums: dict[Class | None, int], where: int, gathered: list[Interval]) -> None:
    """One interval a class, in the order of the classes, from `where` on."""
    for doing in sorted(sums, key=lambda name: -1 if name is None else CLASSES.index(name)):
        if sums[doing]:
            _add(gathered, where, doing)
        where += sums[doing]
    sums.clear()


def _add(gathered: list[Interval], start: int, doing: Class | None) -> None:
    if not gathered or gathered[-1][1] != doing:
        gathered.append((start, doing))


def thin_changes(changes: Sequence[Change], end: int, most: int = MOST_CHANGES) -> list[Change]:
    """At most about `most` of them: of each cell of time the first, smallest, largest and last one."""
    if len(changes) <= most:
        return list(changes)
    begin = changes[0][0]
    cell = max(1, -(-(end - begin + 1) * 4 // most))
    kept: list[Change] = []
    start = 0
    for index in range(1, len(changes) + 1):
        if index == len(changes) or (changes[index][0] - begin) // cell != (changes[start][0] - begin) // cell:
            kept += _extremes(changes[start:index])
            start = index
    return kept


def _extremes(changes: Sequence[Change]) -> list[Change]:
    known = [(value, index) for index, (_, value) in enumerate(changes) if value is not None]
    chosen = {0, len(changes) - 1, *(index for _, index in (min(known), max(known)))} if known else {0, len(changes) - 1}
    return [changes[index] for index in sorted(chosen)]


@dataclass(frozen=True, slots=True)
class Point:
    """Some steps in a row: the last of them, and mean, smallest and largest of their values."""

    index: int
    mean: float
    smallest: float
    largest: float


def thin_curve(values: Sequence[float | None], most: int = MOST_POINTS) -> list[Point]:
    """At most `most` points of a curve; steps without a value are left out."""
    size = max(1, -(-len(values) // most))
    points = []
    for start in range(0, len(values), size):
        there = [value for value in values[start : start + size] if value is not None]
        if there:
            points.append(Point(min(start + size, len(values)) - 1, fsum(there) / len(there), min(there), max(there)))
    return points
