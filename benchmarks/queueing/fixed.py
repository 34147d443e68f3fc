"""The model without events, for one family of policies: a fixed ratio, lending at every n-th boundary. Fast enough to search in hindsight.

    boundary v, v divisible by n, G − E < ratio · S ─▶ lend until floor(ratio · S) samples are ready ─▶ K steps ─▶ publication ─▶ …

n = 0 never lends: `static_fully_async`. n = 1 is `fixed_ratio`; that the real one takes the same time in the model with events is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf

from benchmarks.queueing.regime import Regime
from benchmarks.queueing.slots import Slots


@dataclass(frozen=True, slots=True)
class Setting:
    """One policy of the family."""

    ratio: float
    every: int = 1
    """Cycles between boundaries at which it may lend; 0: it never does."""


STATIC = Setting(0.0, 0)
SEARCHED = tuple(Setting(step / 20, every) for every in (1, 2, 3) for step in range(1, 21))
"""What the search in hindsight tries: 0.05 to 1.0 by 0.05, lending every 1, 2 or 3 cycles."""


def seconds_of(regime: Regime, lengths: Sequence[float], setting: Setting) -> float:
    """Seconds from boundary 0 to the last publication."""
    run = _Run(regime, lengths, setting)
    for version in range(regime.cycles):
        run.cycle(version)
    return run.now


class _Run:
    def __init__(self, regime: Regime, lengths: Sequence[float], setting: Setting) -> None:
        self.now = 0.0
        self._regime = regime
        self._setting = setting
        self._slots = Slots(lengths, regime.standalone_slots, regime.hybrid_slots, regime.move_seconds)
        self._ready = 0
        self._used = 0
        """Samples of batches formed since the last publication."""
        self._trained = 0
        self._fill()

    def cycle(self, version: int) -> None:
        """Boundary `version`, the steps after it, and the publication at their end."""
        regime = self._regime
        if self._lends(version):
            self._lend()
        for _ in range(regime.K):
            self._wait_for(regime.R)
            self._ready -= regime.R
            self._used += regime.R
            self._pass(regime.train_step_s)
        self._trained += regime.cycle_samples
        self._publish()

    def _lends(self, version: int) -> bool:
        if self._setting.every == 0 or version % self._setting.every:
            return False
        size = self._regime.cycle_samples
        ahead = self._ready + self._trained - size * max(1, version)
        return ahead < self._setting.ratio * size

    def _lend(self) -> None:
        self._pass(self._regime.activate_seconds)
        self._slots.open_hybrid()
        self._fill()
        self._wait_for(floor(self._setting.ratio * self._regime.cycle_samples))
        self._slots.cut_hybrid(self.now)
        self._fill()
        self._pass(self._regime.deactivate_seconds)

    def _publish(self) -> None:
        self._slots.delay(self._regime.sync_seconds)
        self.now += self._regime.sync_seconds
        self._used = 0
        self._slots.update(self.now)
        self._fill()

    def _wait_for(self, ready: int) -> None:
        while self._ready < ready:
            self._take()

    def _pass(self, seconds: float) -> None:
        until = self.now + seconds
        while self._slots.next_ready_at <= until:
            self._take()
        self.now = until

    def _take(self) -> None:
        """The next sample becomes ready."""
        self.now = self._slots.next_ready_at
        assert self.now < inf, "nothing is in flight, and the trainer waits"
        self._slots.finish()
        self._ready += 1
        self._fill()

    def _fill(self) -> None:
        room = self._regime.limit - self._slots.in_flight - self._ready - self._used
        self._slots.fill(self.now, room)
