"""How long samples take: a log-normal distribution, estimated from what finished and from how long the others have been worked on.

    ln seconds ~ N(m, d²)      m: of the last LONG_RUN samples, moved towards that of the NEWEST as far as the two differ by more than
                               chance (THRESHOLD standard errors). A sample that is not ready yet counts with what it will take on
                               average, given how long it has taken already: lengths that change show before the long ones end.
                               d: of differences between neighbours, so that a mean that moves is not taken for spread.

A forecast needs one length for each sample, not the mean for all: else they would all end at once. Sample i takes the quantile of its own
number `spread(i)`, of those longer than what it has taken already; numbers in a row are spread evenly, so a forecast has its share of the
long ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import copysign, exp, fsum, log, sqrt

from policies.in_flight import SHORTEST_S, Finished, InFlight
from policies.normal import above, exceeded_with, mean_above

LEAST_FINISHED = 8
"""Samples that must have finished before their lengths are believed."""
LONG_RUN = 256
"""Started samples whose mean is believed as long as the newest ones agree."""
NEWEST = 96
"""Started samples that tell of a change."""
THRESHOLD = 0.5
"""Standard errors that are taken for chance."""
LEAST_SD = 0.1
"""Spread of the logarithm that is always reckoned with."""
WEIGHT_OF_UNFINISHED = 0.3
"""What a sample that is not ready tells, in terms of one that is."""
ROUNDS = 2
SPREAD_BITS = 8


def spread(number: int) -> float:
    """A number in (0, 1), those of successive numbers spread evenly: the bits mirrored at the point."""
    mirrored = 0
    for bit in range(SPREAD_BITS):
        mirrored |= ((number >> bit) & 1) << (SPREAD_BITS - 1 - bit)
    return (mirrored + 0.5) / (1 << SPREAD_BITS)


SPREAD = tuple(spread(number) for number in range(1 << SPREAD_BITS))
FRESH = tuple(exceeded_with(1.0 - share) for share in SPREAD)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Logarithms of the seconds of a sample: mean and standard deviation."""

    mean_log: float
    sd_log: float

    @property
    def mean_s(self) -> float:
        """Mean seconds."""
        return exp(self.mean_log + self.sd_log * self.sd_log / 2)

    @property
    def sd_s(self) -> float:
        """Standard deviation of the seconds."""
        return self.mean_s * sqrt(exp(self.sd_log * self.sd_log) - 1.0)

    def hazard(self, seconds: float) -> float:
        """Samples expected to end, by so many seconds, of one that starts anew whenever it ends."""
        return -log(max(above((log(max(SHORTEST_S, seconds)) - self.mean_log) / self.sd_log), 1e-12))

    def fresh_s(self, sample: int) -> float:
        """Seconds that a sample takes."""
        return exp(self.mean_log + self.sd_log * FRESH[sample % len(FRESH)])

    def remaining_s(self, sample: int, worked_s: float) -> float:
        """Seconds that it takes still."""
        if worked_s <= SHORTEST_S:
            return self.fresh_s(sample)
        longer = above((log(worked_s) - self.mean_log) / self.sd_log)
        z = exceeded_with(longer * (1.0 - SPREAD[sample % len(SPREAD)]))
        return max(0.0, exp(self.mean_log + self.sd_log * z) - worked_s)


def estimate(in_flight: InFlight, sd_log: float | None = None) -> Lengths | None:
    """The lengths as the log shows them; None: too few have finished. `sd_log`: their spread, if it was worked out before."""
    finished = in_flight.finished
    if len(finished) < LEAST_FINISHED:
        return None
    newest = max(max(in_flight.jobs, default=0), max(one.sample for one in finished))
    running = [(sample, log(worked)) for sample, job in in_flight.jobs.items() if (worked := in_flight.worked_s(job)) > SHORTEST_S]
    sd = _spread_of(finished, newest - NEWEST) if sd_log is None else sd_log
    first = fsum(one.log_s for one in finished) / len(finished)
    long_run, _ = _censored_mean(finished, running, newest - LONG_RUN, first, sd)
    recent, told = _censored_mean(finished, running, newest - NEWEST, long_run, sd)
    chance = THRESHOLD * sd / sqrt(max(1.0, told))
    return Lengths(long_run + copysign(max(0.0, abs(recent - long_run) - chance), recent - long_run), sd)


def _spread_of(finished: Iterable[Finished], newest: int) -> float:
    """Standard deviation of the logarithms, from the differences of samples next to each other: a mean that moves does not count as spread.

    Of the newest samples the short ones have finished, so they say little about it.
    """
    by_sample = sorted((one.sample, one.log_s) for one in finished)
    logs = [log_s for sample, log_s in by_sample if sample <= newest]
    if len(logs) < LEAST_FINISHED:
        logs = [log_s for _, log_s in by_sample]
    squares = fsum([(logs[index] - logs[index - 1]) ** 2 for index in range(1, len(logs))])
    return sqrt(squares / (2 * (len(logs) - 1)) + LEAST_SD * LEAST_SD)


def _censored_mean(
    finished: Iterable[Finished], running: Sequence[tuple[int, float]], after: int, mean: float, sd: float
) -> tuple[float, float]:
    """Mean of the logarithms of the samples after number `after`, and how many finished samples it is worth.

    Those of running samples are known only to be larger than what they have reached.
    """
    ended = [one.log_s for one in finished if one.sample > after]
    reached = [x for sample, x in running if sample > after]
    count = len(ended) + len(reached)
    if not count:
        return mean, 0.0
    total, found = fsum(ended), mean
    for _ in range(ROUNDS):
        found = (total + fsum([found + sd * mean_above((x - found) / sd) for x in reached])) / count
    return found, len(ended) + WEIGHT_OF_UNFINISHED * len(reached)
