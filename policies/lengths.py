"""How long samples take: a log-normal distribution, estimated from what finished and from how long the others have been worked on.

    ln seconds ~ N(m, d²)      m, d: of the samples that finished last;   then m is moved towards the newest samples as far as these differ
                               by more than chance (THRESHOLD standard errors). A sample that is not ready yet counts with what it will
                               take on average, given how long it has taken already: lengths that change show before the long ones end.

A forecast needs one length for each sample, not the mean for all: else they would all end at once. Sample i takes the quantile of its own
number `spread(i)`, of those longer than what it has taken already; numbers in a row are spread evenly, so a forecast has its share of the
long ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import copysign, exp, fsum, log, sqrt

from policies.in_flight import SHORTEST_S, InFlight
from policies.normal import above, exceeded_with, mean_above

LEAST_FINISHED = 8
"""Samples that must have finished before their lengths are believed."""
NEWEST = 96
"""Started samples that tell of a change."""
THRESHOLD = 1.5
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


def estimate(in_flight: InFlight) -> Lengths | None:
    """The lengths as the log shows them; None: too few have finished."""
    finished = in_flight.finished
    if len(finished) < LEAST_FINISHED:
        return None
    logs = [one.log_s for one in finished]
    mean = fsum(logs) / len(logs)
    sd = sqrt(fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1) + LEAST_SD * LEAST_SD)
    newest = max(max(in_flight.jobs, default=0), max(one.sample for one in finished)) - NEWEST
    ended = [one.log_s for one in finished if one.sample > newest]
    running = [log(worked) for sample, job in in_flight.jobs.items() if sample > newest and (worked := in_flight.worked_s(job)) > SHORTEST_S]
    recent = _censored_mean(ended, running, mean, sd)
    chance = THRESHOLD * sd / sqrt(max(1.0, len(ended) + WEIGHT_OF_UNFINISHED * len(running)))
    moved = copysign(max(0.0, abs(recent - mean) - chance), recent - mean)
    return Lengths(mean + moved, sd)


def _censored_mean(ended: Sequence[float], running: Sequence[float], mean: float, sd: float) -> float:
    """Mean of the logarithms, those of `running` known only to be larger."""
    count = len(ended) + len(running)
    if not count:
        return mean
    total, found = fsum(ended), mean
    for _ in range(ROUNDS):
        found = (total + fsum(found + sd * mean_above((x - found) / sd) for x in running)) / count
    return found
