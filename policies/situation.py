"""What a forecast starts from, read from the view.

A forecast plays through at most about MOST_JOBS samples, whatever the size of a cycle: of more, every second, third, … stands for its
neighbours, on as many fewer places. Places of part of a sample (few slots, many answers) are rounded to one that is slower or faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum, sqrt

from policies.forecast import Situation
from policies.in_flight import InFlight
from policies.lengths import Lengths
from policies.view import ScheduleView

FIRST_COST_S = 10.0
"""Seconds of a lend and its return until one was measured; but at most FIRST_COST_SHARE of the seconds that a cycle's steps take."""
FIRST_COST_SHARE = 0.05
MEASURED = 4
"""Newest swings and steps over which seconds are averaged."""
MOST_JOBS = 128
SPEED_PRIOR = 24.0
"""Samples that must have ended on hybrids for these to be believed half as fast, or twice, as far as it was seen."""
SLOWEST, FASTEST = 0.25, 4.0


@dataclass(frozen=True, slots=True)
class Start:
    """A situation, of which one sample stands for `scale` of the run's."""

    now: Situation
    scale: int


def situation(view: ScheduleView, lengths: Lengths, speed: float, lent: bool) -> Start:
    """Everything that a forecast starts from. `speed`: of a hybrid's place. `lent`: the hybrids generate already."""
    books, flight, shape = view.books, view.in_flight, view.shape
    plan = books.plan
    assert plan is not None
    used, done = (0, 0) if view.is_open else (books.used_since_publication, books.steps_since_publication)
    steps = max(0, min(shape.trigger_parameter_sync_step - done, plan.total_steps - books.steps_done))
    outstanding = len(flight.jobs) + len(books.ready) + used
    startable = 0 if books.stop_requested else max(0, min(books.limit - outstanding, books.prompts_left))
    scale = max(1, ceil((len(flight.jobs) + startable) / MOST_JOBS))
    home, stretch = _places(flight.places["standalone"], scale)
    away, stretch_away = _places(flight.hybrid_places, scale)
    standalone, hybrid, waiting = _to_go(flight, lengths, scale, stretch)
    fresh = [stretch * lengths.fresh_s(sample) for sample in range(books.started, books.started + startable, scale)]
    step_s = mean_of_newest(view.step_s)
    lend_s, return_s = swing_s(view, shape.trigger_parameter_sync_step * step_s)
    return Start(
        Situation(
            standalone=tuple(standalone[:home]), hybrid=tuple(hybrid[:away]), waiting=(*standalone[home:], *hybrid[away:], *waiting),
            fresh=tuple(fresh), standalone_places=home, hybrid_places=away, hybrid_speed=speed * stretch / stretch_away,
            ready=len(books.ready) / scale, step_samples=shape.required_samples / scale, steps=steps, step_s=step_s,
            lend_s=0.0 if lent else lend_s, return_s=return_s, sd_s=stretch * lengths.sd_s / sqrt(scale),
        ),
        scale,
    )  # fmt: skip


def hybrid_speed(flight: InFlight, lengths: Lengths) -> float:
    """Ends of samples on hybrids, over those to be expected on standalone replicas in the same time."""
    ends = sum(1 for span in flight.hybrid_spans if span.finished)
    expected = fsum([lengths.hazard(span.to_s) - lengths.hazard(span.from_s) for span in flight.hybrid_spans])
    return min(max((ends + SPEED_PRIOR) / (expected + SPEED_PRIOR), SLOWEST), FASTEST)


def swing_s(view: ScheduleView, steps_s: float) -> tuple[float, float]:
    """Seconds of a lend and of a return; what was never measured is taken as cheap enough to be tried."""
    first = min(FIRST_COST_S, FIRST_COST_SHARE * steps_s) / 2
    out, back = view.swings.activations_s, view.swings.deactivations_s
    return (mean_of_newest(out) if out else first), (mean_of_newest(back) if back else first)


def mean_of_newest(seconds: Sequence[float]) -> float:
    """Mean of the last MEASURED ones."""
    newest = list(seconds)[-MEASURED:]
    return fsum(newest) / len(newest)


def _places(places: int, scale: int) -> tuple[int, float]:
    """Places in the forecast, and how much longer a sample that stands for `scale` takes on one of them."""
    if not places:
        return 0, 1.0
    kept = max(1, round(places / scale))
    return kept, kept * scale / places


def _to_go(flight: InFlight, lengths: Lengths, scale: int, stretch: float) -> tuple[list[float], list[float], list[float]]:
    """Seconds to go of the samples on standalone places, on hybrid ones, and of those that wait."""
    standalone: list[float] = []
    hybrid: list[float] = []
    waiting: list[float] = []
    to_go = {"standalone": standalone, "hybrid": hybrid}
    for sample, job in flight.jobs.items():
        if job.place is not None:
            to_go[job.place].append(stretch * lengths.remaining_s(sample, flight.worked_s(job)))
    for sample, job in flight.waiting:
        waiting.append(stretch * lengths.remaining_s(sample, job.worked_s))
    return standalone[::scale], hybrid[::scale], waiting[::scale]
