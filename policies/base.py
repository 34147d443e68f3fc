"""What a policy of one's own is a subclass of: everything but `verdict` has a meaning already.

    class Patient(PolicyBase):
        def __init__(self, cycles: int = 2) -> None:         its settings, each with a type and a default
            self.cycles = cycles
            self.idle_cycles = 0                             its memory: plain data, which only `decided` changes

        def verdict(self, view: ScheduleView) -> Verdict:
            return lend(view.shape.required_samples, "waited") if self.idle_cycles >= self.cycles else keep("patient")

        def decided(self, view: ScheduleView) -> None:
            self.idle_cycles = self.idle_cycles + 1 if sum(view.wait_n) else 0

It imports typing, dataclasses, enum, collections, math, pydantic, `policies` and our events, and nothing else: what it says must follow
from the log, also years later.
"""

from __future__ import annotations

from typing import Self

from bus.events import Value
from policies.protocol import Verdict
from policies.view import ScheduleView


class PolicyBase:
    """A `policies.protocol.Policy` that lends nothing by itself."""

    name: str
    """What it was chosen by."""
    params: dict[str, Value]
    """Its settings, as they are recorded."""

    def __new__(cls, *settings: object, **named: object) -> Self:
        made = super().__new__(cls)
        made.identify(cls.__name__, {})
        return made

    def identify(self, name: str, params: dict[str, Value]) -> None:
        """Says what it was chosen by, and with which settings. Whoever makes it from a file calls this."""
        # Also a frozen data class has a name.
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "params", params)

    def verdict(self, view: ScheduleView) -> Verdict:
        """The answer to the open boundary `view.boundary`: `lend(…)` or `keep(…)`. Changes nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no method verdict(self, view)")

    def give_back_at(self, view: ScheduleView) -> int:
        """Ready samples at which devices that are lent now go back: as it was said when they were lent. Changes nothing."""
        lend = view.swings.lend
        return view.shape.required_samples if lend is None else lend.give_back_at

    def decided(self, view: ScheduleView) -> None:
        """`view.boundary` has just been decided, by this policy or not: the place to remember something."""

    def lent(self, view: ScheduleView) -> None:
        """The devices have just been lent, by this policy or not: another place to remember something."""

    def extra(self, view: ScheduleView) -> Verdict | None:
        """A request in mid-cycle; none. Changes nothing."""
        return None

    def rebalance(self, view: ScheduleView) -> bool:
        """Whether requests are to be spread anew when a lend has been opened: as the run's settings say it. Changes nothing."""
        return False


def lend(give_back_at: int, reason: str, **evidence: float) -> Verdict:
    """Lend the devices until so many samples are ready. `evidence`: the numbers behind it, which are recorded."""
    return Verdict("rollout", give_back_at, reason, evidence)


def keep(reason: str, **evidence: float) -> Verdict:
    """Do not lend."""
    return Verdict("train", 0, reason, evidence)
