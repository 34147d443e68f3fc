"""What the page's scripts draw, as data for JSON: everything thinned, times as whole ticks, each as the difference to the one before.

A tick is a millionth of the run, so that a lane of thousands of intervals is some bytes an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from replay.report.series import Series
from replay.report.thinning import MOST_POINTS, Point, thin_changes, thin_curve, thin_intervals
from replay.report.timeline import Lane, Step, Timeline
from services.monitor.classes import CLASSES
from services.monitor.swings import SwingCost
from services.monitor.training import REWARD

NANOSECONDS = 1e9
TICKS = 1_000_000
DIGITS = 5
UNUSED = "z"
"""Stands for the time in which nobody holds a device, where a class is a letter: a for the first, b for the second, …"""
WAITED = "seconds waited"


class Ticks:
    """Turns the run's nanoseconds into ticks since boundary 0 was opened."""

    def __init__(self, opened: int, end: int) -> None:
        self._opened = opened
        self.nanoseconds = max(1, (end - opened) // TICKS)

    def of(self, time: int) -> int:
        """Nothing is before the opening."""
        return max(0, time - self._opened) // self.nanoseconds

    def steps(self, times: Iterable[int]) -> list[int]:
        """Each as the difference to the one before."""
        differences, before = [], 0
        for time in times:
            tick = self.of(time)
            differences.append(tick - before)
            before = tick
        return differences


def chart_data(timeline: Timeline) -> dict[str, object]:
    """Everything that is drawn of one run."""
    ticks = Ticks(timeline.opened, timeline.end)
    plan = timeline.summary.books.plan
    return {
        "tick": ticks.nanoseconds / NANOSECONDS,
        "end": ticks.of(timeline.end),
        "need": 0 if plan is None else plan.required_samples,
        "lanes": [_lane(lane, ticks, timeline.end) for lane in timeline.lanes],
        "ready": _series(timeline.ready, ticks, timeline.end),
        "inFlight": _series(timeline.in_flight, ticks, timeline.end),
        "giveBackAt": _series(timeline.give_back_at, ticks, timeline.end),
        "swings": [_swing(swing, timeline, ticks) for swing in timeline.summary.swings.all],
        "policies": _policies(timeline, ticks),
        "versions": _versions(timeline, ticks),
        "notes": [
            [ticks.of(note.time), int(note.is_trouble), note.text] for note in timeline.notes if note.time >= timeline.opened
        ],
        "steps": _steps(timeline.steps, ticks),
        "curves": {name: _curve(values) for name, values in curves(timeline.steps).items()},
        "staleness": _staleness(timeline.steps),
        "evaluations": _evaluations(timeline, ticks),
    }  # fmt: skip


def _lane(lane: Lane, ticks: Ticks, end: int) -> dict[str, object]:
    intervals = thin_intervals(list(zip(lane.doing.times, lane.doing.values, strict=True)), end)
    letters = (UNUSED if doing is None else chr(ord("a") + CLASSES.index(doing)) for _, doing in intervals)
    group = lane.group
    return {
        "name": group.name,
        "count": group.count,
        "holders": list(group.holders),
        "at": ticks.steps(time for time, _ in intervals),
        "does": "".join(letters),
    }


def _series(series: Series[int] | Series[int | None], ticks: Ticks, end: int) -> dict[str, object]:
    changes = thin_changes(list(zip(series.times, series.values, strict=True)), end)
    return {"at": ticks.steps(time for time, _ in changes), "is": [value for _, value in changes]}


def _versions(timeline: Timeline, ticks: Ticks) -> dict[str, object]:
    """When each was published; of very many, evenly spread ones."""
    every = max(1, len(timeline.publications) // MOST_POINTS)
    shown = timeline.publications[::every]
    return {"at": ticks.steps(time for time, _ in shown), "is": [version for _, version in shown]}


def _policies(timeline: Timeline, ticks: Ticks) -> dict[str, object]:
    """From when on each one decided."""
    stretches = timeline.summary.policies.stretches
    at = ticks.steps(timeline.policy_times.get(stretch.position, timeline.opened) for stretch in stretches)
    return {"at": at, "is": [str(stretch.chosen) for stretch in stretches]}


def _swing(swing: SwingCost, timeline: Timeline, ticks: Ticks) -> dict[str, object]:
    began, ended = timeline.swing_times.get(swing.swing, (timeline.opened, None))
    return {
        "swing": swing.swing,
        "target": swing.target,
        "reason": swing.reason,
        "outcome": swing.outcome,
        "from": ticks.of(began),
        "to": ticks.of(timeline.end if ended is None else ended),
        "ready": swing.ready_at_start,
        "seconds": significant(swing.seconds),
        "phases": {name: significant(seconds) for name, seconds in swing.phases.items()},
        "tokens": swing.lent_tokens,
        "cost": significant(swing.cost_seconds),
        "gain": significant(swing.gain_seconds(timeline.summary.standalone_tokens_per_s)),
    }


# --- by step -----------------------------------------------------------------------------------------------------------------------


def curves(steps: Sequence[Step]) -> dict[str, list[float | None]]:
    """Name -> value at each step: reward, seconds waited, and every metric that the trainer told."""
    names = dict.fromkeys(name for step in steps for name in step.metrics if name != REWARD)
    found: dict[str, list[float | None]] = {
        "reward": [step.reward for step in steps],
        WAITED: [step.wait_s for step in steps],
    }
    return found | {name: [step.metrics.get(name) for step in steps] for name in names}


def _steps(steps: Sequence[Step], ticks: Ticks) -> dict[str, object]:
    """Number and time of the steps that the points of a curve stand at."""
    at = [steps[point.index] for point in thin_curve([0.0] * len(steps))]
    return {"step": [step.step for step in at], "at": ticks.steps(step.time for step in at)}


def _curve(values: Sequence[float | None]) -> dict[str, object]:
    points = thin_curve(values)
    return {"mean": _spread(points, len(values), lambda point: point.mean)}


def _staleness(steps: Sequence[Step]) -> dict[str, object]:
    ages = [step.staleness for step in steps]
    smallest = thin_curve([None if age is None else age.smallest for age in ages])
    mean = thin_curve([None if age is None else age.mean for age in ages])
    largest = thin_curve([None if age is None else age.largest for age in ages])
    return {
        "min": _spread(smallest, len(ages), lambda point: point.smallest),
        "mean": _spread(mean, len(ages), lambda point: point.mean),
        "max": _spread(largest, len(ages), lambda point: point.largest),
    }


def _spread(points: Sequence[Point], count: int, value: Callable[[Point], float]) -> list[float | None]:
    """One value for each point that `_steps` has; None where there is none."""
    size = max(1, -(-count // MOST_POINTS))
    places: list[float | None] = [None] * -(-count // size)
    for point in points:
        places[point.index // size] = significant(value(point))
    return places


def _evaluations(timeline: Timeline, ticks: Ticks) -> dict[str, object]:
    every = max(1, len(timeline.evaluations) // MOST_POINTS)
    shown = timeline.evaluations[::every]
    names = dict.fromkeys(name for done in shown for name in done.metrics)
    return {
        "step": [done.step for done in shown],
        "at": ticks.steps(done.time for done in shown),
        "version": [done.version for done in shown],
        "curves": {name: {"mean": [significant(done.metrics.get(name)) for done in shown]} for name in names},
    }


def significant(value: float | None) -> float | None:
    """To as many digits as a chart can show; what is no number is not drawn."""
    if value is None:
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return rounded if rounded - rounded == 0.0 else None
