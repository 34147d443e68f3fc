"""When a cycle would end if the devices stayed at home, or were lent until so many samples are ready.

    places   standalone ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒    each a queue of samples, first come first served
             hybrid            ▒▒▒▒▒▒▒▒▒▒┐ cut: what they run waits for a standalone place, its seconds kept
    trainer  home │ lend_s │    lent     │ return_s │ step │ wait │ step │ … │ end of the cycle

A forecast is the queue played through, with one length for each sample: exact for these lengths, no rates and no averages in it. Work
still to be done at the end counts, too (`left_s`): two plans that end at the same time are not equal when one has half of the next cycle's
samples nearly ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, fsum, inf, sqrt

from policies.normal import positive_part


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known now. Seconds of samples are those of a standalone place; `now` is 0."""

    standalone: tuple[float, ...]
    """Seconds to go of each sample on a standalone place."""
    hybrid: tuple[float, ...]
    """Seconds to go of each sample on a hybrid's place."""
    waiting: tuple[float, ...]
    """Seconds to go of each sample that waits for a place, the next one first."""
    fresh: tuple[float, ...]
    """Seconds of each sample that may still be started before the next publication."""
    standalone_places: int
    hybrid_places: int
    """While they are lent."""
    hybrid_speed: float
    """Of a hybrid's place, in terms of a standalone one."""
    ready: float
    step_samples: float
    steps: int
    """Steps to the end of the cycle."""
    step_s: float
    lend_s: float
    """Seconds until the hybrids generate; 0 when they do."""
    return_s: float
    sd_s: float
    """Standard deviation of the seconds of a sample."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a plan."""

    give_back_at: int
    """Ready samples at which the devices go back; 0: they are not lent."""
    end_s: float
    """Seconds until the last step of the cycle is done."""
    wait_s: float
    """Of these, seconds that the trainer waits at home."""
    left_s: float
    """Seconds of work still to be done then, of the samples that are started or may be."""

    def score(self, price: float) -> float:
        """What counts: the end, and the work that is left at `price` seconds for one."""
        return self.end_s + price * self.left_s


BEFORE = -1.0
"""When what runs now was taken up."""

Run = tuple[float, float]
"""When a sample is taken up, and when it is done."""


def stay(now: Situation, doubt: float) -> Outcome:
    """The devices stay at home."""
    free = sorted([*now.standalone, *[0.0] * (now.standalone_places - len(now.standalone))])
    runs = [(0.0, seconds) for seconds in now.standalone]
    rest = [*now.waiting, *now.fresh]
    runs += _queue(free, rest)
    return _train(now, runs, rest[len(runs) - len(now.standalone) :], 0.0, 0, doubt)


@dataclass(frozen=True, slots=True)
class Lent:
    """Everything that is in flight or may be started, as if the devices were lent for ever."""

    now: Situation
    home: list[tuple[float, float, float]]
    """On standalone places: taken up, done, seconds of work."""
    away: list[tuple[float, float, float]]
    """On hybrid ones."""
    done: list[float]
    """When samples become ready, in order."""


def lend(now: Situation) -> Lent:
    """The devices are lent, from now on or from before."""
    slow = 1.0 / now.hybrid_speed
    home = [(BEFORE, seconds, seconds) for seconds in now.standalone]
    away = [(BEFORE, seconds * slow, seconds) for seconds in now.hybrid]
    free_home = sorted([*now.standalone, *[0.0] * (now.standalone_places - len(home))])
    free_away = sorted([*[run[1] for run in away], *[now.lend_s] * (now.hybrid_places - len(away))])
    for seconds in (*now.waiting, *now.fresh):
        if free_home and not (free_away and free_away[0] < free_home[0]):
            start = free_home.pop(0)
            end = start + seconds
            home.append((start, end, seconds))
            free_home.append(end)
            free_home.sort()
        elif free_away:
            start = free_away.pop(0)
            end = start + seconds * slow
            away.append((start, end, seconds))
            free_away.append(end)
            free_away.sort()
    return Lent(now, home, away, sorted([run[1] for run in home] + [run[1] for run in away]))


def give_back(lent: Lent, count: int, doubt: float) -> Outcome:
    """The devices go back when `count` samples are ready, or all that can be."""
    now = lent.now
    lacking = min(count - floor(now.ready), len(lent.done))
    cut = max(now.lend_s, lent.done[lacking - 1]) if lacking > 0 else now.lend_s
    runs = [(start, end) for start, end, _ in lent.home if start < cut]
    runs += [(start, end) for start, end, _ in lent.away if end <= cut]
    speed = now.hybrid_speed
    rest = [(end - cut) * speed for start, end, _ in lent.away if start < cut < end]
    # Whoever was not taken up before the cut comes after those who were, in the order of their turns.
    later = [run for run in lent.home if run[0] >= cut] + [run for run in lent.away if run[0] >= cut and run[1] > cut]
    later.sort(key=_taken_up)
    rest += [seconds for _, _, seconds in later]
    busy = [end for start, end, _ in lent.home if start < cut < end]
    free = sorted([*busy, *[cut] * (now.standalone_places - len(busy))])
    queued = _queue(free, rest)
    return _train(now, runs + queued, rest[len(queued) :], cut + now.return_s, count, doubt)


def _taken_up(run: tuple[float, float, float]) -> float:
    return run[0]


def _queue(free: list[float], jobs: Sequence[float]) -> list[Run]:
    """Each job takes the place that is free first; without places none is done."""
    runs: list[Run] = []
    if not free:
        return runs
    for seconds in jobs:
        start = free.pop(0)
        end = start + seconds
        runs.append((start, end))
        free.append(end)
        free.sort()
    return runs


def _train(now: Situation, runs: list[Run], undone: Sequence[float], home_at: float, give_back_at: int, doubt: float) -> Outcome:
    """The steps of the cycle, each as soon as its samples are ready."""
    done = sorted([end for _, end in runs])
    late, need = -inf, -now.ready
    for step in range(now.steps):
        need += now.step_samples
        if need > 0:
            late = max(late, _ready_at(done, ceil(need), bool(undone), home_at) - home_at - step * now.step_s)
    lacking = now.steps * now.step_samples - max(now.ready, give_back_at)
    wait = max(late, 0.0)
    if doubt and lacking > 0 and now.standalone_places and -inf < late < inf:
        # The lengths still to come are drawn, not known: their sum, shared among the places, spreads so much.
        wait = positive_part(late, doubt * now.sd_s * sqrt(lacking) / now.standalone_places)
    end = home_at + wait + now.steps * now.step_s
    left = [done_at - max(start, end) for start, done_at in runs if done_at > end]
    return Outcome(give_back_at, end, wait, fsum(left) + fsum(undone))


def _ready_at(done: Sequence[float], need: int, some_undone: bool, home_at: float) -> float:
    """When so many samples more are ready, or, at the end of the data, all that there will be."""
    if need > len(done) and some_undone:
        return inf
    return done[min(need, len(done)) - 1] if done else home_at
