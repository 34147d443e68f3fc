"""What the runs of the model say: hours per regime, and whether a policy passes its bars.

saving(p) = hours(static) − hours(p), means over the seeds; best: the fixed ratio and cadence with the fewest mean hours in this regime.

    stationary, best saves > 3 % of static      saving(p) ≥ 0.97 · saving(best)
    changing                                    saving(p) > saving(best)
    everywhere                                  hours(p) ≤ 1.01 · hours(static)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.queueing.fixed import SEARCHED, STATIC, Setting
from benchmarks.queueing.regime import Regime

HOUR_S = 3600.0
SEARCH = "search"
"""Under this name stand the seconds of (STATIC, *SEARCHED)."""
SHARE_OF_SAVING = 0.97
SAVES_MUCH = 0.03
MOST_OVER_STATIC = 1.01

Seconds = Mapping[int, Sequence[float]]
"""Seed -> seconds of each run."""


@dataclass(frozen=True, slots=True)
class Best:
    """What the search in hindsight found."""

    setting: Setting
    hours: float
    per_seed: tuple[tuple[Setting, float], ...]
    """The best of each seed alone, with its hours."""


def mean_hours(seconds: Seconds) -> list[float]:
    """Mean over the seeds, of each run."""
    return [fmean(column) / HOUR_S for column in zip(*seconds.values(), strict=True)]


def search(seconds: Seconds) -> tuple[float, Best]:
    """(hours of static, the best setting)."""
    settings = (STATIC, *SEARCHED)
    hours = mean_hours(seconds)
    best = min(range(1, len(settings)), key=hours.__getitem__)
    per_seed = []
    for row in seconds.values():
        own = min(range(1, len(settings)), key=row.__getitem__)
        per_seed.append((settings[own], row[own] / HOUR_S))
    return hours[0], Best(settings[best], hours[best], tuple(per_seed))


def fluid_hours(regime: Regime) -> float:
    """Hours if swings were free and no slot were ever idle but the hybrid's while the trainer works: an estimate of what no policy beats.

    n_s · (T − sync) + n_h · (T − train − sync) = work, of the samples that are trained; and T ≥ train + sync.
    """
    busy_s, sync_s = regime.train_seconds_per_cycle * regime.cycles, regime.sync_seconds * regime.cycles
    found = []
    for seed in regime.seeds:
        work = sum(regime.sample_lengths(seed)[: regime.cycle_samples * regime.cycles])
        slots = regime.standalone_slots + regime.hybrid_slots
        generating = (work + regime.hybrid_slots * busy_s + slots * sync_s) / slots
        found.append(max(generating, busy_s + sync_s) / HOUR_S)
    return fmean(found)


@dataclass(frozen=True, slots=True)
class Bars:
    """A policy in one regime. None: the bar does not apply there."""

    share_of_saving: float
    """Of the best one's saving over static; 0 when that saves nothing."""
    over_static: float
    """Hours / hours of static."""
    saves_as_much: bool | None
    beats_best: bool | None
    no_worse_than_static: bool

    @property
    def passed(self) -> bool:
        """All bars that apply."""
        return self.saves_as_much is not False and self.beats_best is not False and self.no_worse_than_static


def judge(hours: float, static: float, best: float, changing: bool) -> Bars:
    """Holds a policy's hours against its bars."""
    saving, best_saving = static - hours, static - best
    much = not changing and best_saving > SAVES_MUCH * static
    return Bars(
        share_of_saving=saving / best_saving if best_saving > 0 else 0.0,
        over_static=hours / static,
        saves_as_much=saving >= SHARE_OF_SAVING * best_saving if much else None,
        beats_best=hours < best if changing else None,
        no_worse_than_static=hours <= MOST_OVER_STATIC * static,
    )
