"""What an answer to a boundary is worth: seconds until the end of the following cycle, as a flow of samples would have it.

    n    samples ready when the boundary opens       R, K   samples of a step, steps of a cycle
    v    share of a sample that one second makes of each sample that is served; v' while hybrids are open for requests
    c    samples that are served at a time, at most; c' while hybrids are open
    a, d seconds of a lend, and of the way back      t      seconds of training a step
    L    most samples that a cycle may have: the staleness limit, or what the prompts still give, if that is less

    lend and give back at g:  x = n ─ a s alone ─▶ ─ together, until x ≥ min(g, L) or max_lent_s have passed ─▶ ─ d s alone ─▶
    then (or at once, without a lend) each step waits until x ≥ R, takes R, and trains for t s, alone. m, what may still become ready before
    the next publication, is L − n at first; x grows by v · min(c, m) a second, m falls by as much, and the last one comes at v a second.
    The following cycle is without a lend whatever was answered: so samples that are left over count for what they then save, and no more.

What is shown as saved by a shadow is (seconds after the active one's answer) − (seconds after the shadow's), both by this model: what the
model leaves out (long tails, checkpoints, requests that move) it leaves out of both.

Example: R = 4, K = 2, L = 24, n = 2; v = 1/8, c = 4, so 0.5 a second; v' = 1/8, c' = 12, so 1.5 a second; a = 3, d = 1, t = 2.
    no lend:     wait 4, train 2 (1 ready), wait 6, train 2 (1 ready) = 14 s; the next cycle waits 6 twice = 16 s      30 s in all
    lend, g = 6: 3 s (3.5 ready), 2.5 / 1.5 = 1.667 s (6), 1 s (6.5), train 2 (3.5), wait 1, train 2 (1 ready)
                 = 10.667 s; the next cycle 16 s                                                               26.667 s in all
    The lend saves 3.333 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log


@dataclass(frozen=True, slots=True)
class Flow:
    """How samples are made."""

    speed: float
    """Share of a sample that a second makes of each one that is served (v)."""
    served: float
    """Samples that are served at a time, at most (c)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What was measured. Seconds."""

    alone: Flow
    """While the hybrids sleep."""
    together: Flow
    """While hybrids are open for requests."""
    lend_s: float
    """A swing to the hybrids (a)."""
    back_s: float
    """A swing back (d)."""
    train_s: float
    """Training of a step (t)."""


@dataclass(frozen=True, slots=True)
class Outset:
    """What an answer starts from: the books when the boundary opened, and the plan."""

    ready: int
    required_samples: int
    steps: int
    """Of the cycle that begins; fewer than usual at the end of the plan."""
    following_steps: int
    """Of the cycle after that."""
    limit: int
    """Most samples that a cycle may have under the staleness limit, those that are ready at its beginning included."""
    left: int
    """Ready, in flight, and prompts not yet taken: all that will ever be trained."""
    max_lent_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy said to a boundary."""

    lends: bool
    give_back_at: int
    max_lent_s: float = 0.0
    """0: as the plan says."""

    def __str__(self) -> str:
        return f"lend, back at {self.give_back_at}" if self.lends else "keep"

    def same_as(self, other: Answer) -> bool:
        """It would have led to the same: the numbers of a lend matter only if it lends."""
        return (not self.lends and not other.lends) or self == other


def cycle_seconds(answer: Answer, outset: Outset, pace: Pace) -> tuple[float, float]:
    """Seconds of the cycle that the answer begins, and of the one after it. Both speeds must be above 0."""
    stock = Stock(float(outset.ready), float(min(outset.limit, outset.left)))
    first = _lend(stock, answer, outset, pace) if answer.lends else 0.0
    first += _train(stock, outset.steps, outset, pace)
    used = outset.required_samples * outset.steps
    stock = Stock(stock.ready, float(max(0, min(outset.limit, outset.left - used))))
    return first, _train(stock, outset.following_steps, outset, pace)


def saved_seconds(active: Answer, shadow: Answer, outset: Outset, pace: Pace) -> float:
    """Seconds that the shadow's answer would have saved; negative: lost."""
    before, after = cycle_seconds(active, outset, pace), cycle_seconds(shadow, outset, pace)
    return (before[0] - after[0]) + (before[1] - after[1])


class Stock:
    """Ready samples that grow until as many as the cycle may have were there."""

    def __init__(self, ready: float, most: float) -> None:
        self.ready = ready
        self.to_come = max(0.0, most - ready)
        """What may still become ready (m)."""

    def grow(self, seconds: float, flow: Flow) -> None:
        left = _left_after(self.to_come, seconds, flow)
        self.ready += self.to_come - left
        self.to_come = left

    def seconds_until(self, wanted: float, flow: Flow) -> float:
        """Until so many are ready, or all that the cycle may have."""
        left = max(0.0, self.to_come - max(0.0, wanted - self.ready))
        return _seconds_to(left, self.to_come, flow)


def _left_after(to_come: float, seconds: float, flow: Flow) -> float:
    """m after some seconds: it falls evenly while all that are served are busy, then like e^(-v t), and evenly to its end below 1."""
    busy = max(1.0, flow.served)
    full = max(0.0, to_come - busy) / (flow.speed * busy)
    if seconds <= full:
        return to_come - flow.speed * busy * seconds
    seconds, to_come = seconds - full, min(to_come, busy)
    tail = log(max(1.0, to_come)) / flow.speed
    if seconds <= tail:
        return to_come * exp(-flow.speed * seconds)
    return max(0.0, min(to_come, 1.0) - flow.speed * (seconds - tail))


def _seconds_to(left: float, to_come: float, flow: Flow) -> float:
    """Seconds in which m falls from `to_come` to `left`."""
    busy = max(1.0, flow.served)
    evenly = max(0.0, to_come - max(left, busy)) / busy
    tail = log(max(1.0, min(to_come, busy)) / max(1.0, min(left, busy)))
    last = max(0.0, min(to_come, 1.0) - min(left, 1.0))
    return (evenly + tail + last) / flow.speed


def _lend(stock: Stock, answer: Answer, outset: Outset, pace: Pace) -> float:
    stock.grow(pace.lend_s, pace.alone)
    lent = min(stock.seconds_until(answer.give_back_at, pace.together), answer.max_lent_s or outset.max_lent_s)
    stock.grow(lent, pace.together)
    stock.grow(pace.back_s, pace.alone)
    return pace.lend_s + lent + pace.back_s


def _train(stock: Stock, steps: int, outset: Outset, pace: Pace) -> float:
    seconds = 0.0
    for _ in range(steps):
        waited = stock.seconds_until(outset.required_samples, pace.alone)
        stock.grow(waited, pace.alone)
        stock.ready = max(0.0, stock.ready - outset.required_samples)
        stock.grow(pace.train_s, pace.alone)
        seconds += waited + pace.train_s
    return seconds
