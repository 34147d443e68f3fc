"""A policy of one's own: lends only after the trainer has waited in several cycles in a row. See docs/write-a-policy.md."""

from policies.base import PolicyBase, keep, lend
from policies.protocol import Verdict
from policies.view import ScheduleView


class Patient(PolicyBase):
    """Lends once `cycles` cycles in a row lacked samples, and takes back when `share` of a cycle is ready."""

    def __init__(self, cycles: int = 2, share: float = 0.5) -> None:
        self.cycles = cycles
        self.share = share
        self.short_cycles = 0

    def verdict(self, view: ScheduleView) -> Verdict:
        short = self.short_after(view)
        if short < self.cycles and not view.shape.only_hybrid:
            return keep("patient", short_cycles=short)
        return lend(int(self.share * view.shape.cycle_samples), "waited", short_cycles=short)

    def decided(self, view: ScheduleView) -> None:
        self.short_cycles = self.short_after(view)

    def short_after(self, view: ScheduleView) -> int:
        """Cycles in a row that lacked samples, with the one that has just ended."""
        return self.short_cycles + 1 if sum(view.wait_n) > 0 else 0
