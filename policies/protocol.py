"""What a policy is: something that answers a boundary, from a `ScheduleView` alone.

boundary opens ──▶ verdict(view)   pure: lend or not, and when to give back
and is decided ──▶ decided(view)   once a boundary, by whatever answer: the policy updates itself
in mid-cycle   ──▶ extra(view)     pure: an extra request, or other numbers for the running lend; most have none
devices lent   ──▶ lent(view)      once a lend, whoever wanted it: the policy updates itself
               ──▶ rebalance(view) pure: are the requests in flight to be spread anew, over all who serve now?
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from bus.events import Target, Value
from policies.view import ScheduleView


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer. `target="train"` at a boundary: do not lend."""

    target: Target
    give_back_at: int
    """Ready samples at which lent devices go back."""
    reason: str
    evidence: dict[str, float] = field(default_factory=dict)
    """The numbers behind it."""
    max_lent_s: float = 0.0
    """Longest time to lend; 0: as the plan says, or for an amendment, as it is."""


class Policy(Protocol):
    """When to swing. Holds no handle to any service; `decided` and `lent` are the only places where its state changes."""

    @property
    def name(self) -> str:
        """What it is chosen by."""

    @property
    def params(self) -> dict[str, Value]:
        """Its settings, as they are recorded."""

    def verdict(self, view: ScheduleView) -> Verdict:
        """The answer to the open boundary `view.boundary`. Changes nothing."""

    def give_back_at(self, view: ScheduleView) -> int:
        """Ready samples at which devices that are lent now should go back. Changes nothing."""

    def decided(self, view: ScheduleView) -> None:
        """`view.boundary` has just been decided, by this policy or not. Updates the policy; called once a boundary."""

    def lent(self, view: ScheduleView) -> None:
        """The devices have just been lent, by this policy's verdict or not; their routes are open. Updates the policy."""

    def extra(self, view: ScheduleView) -> Verdict | None:
        """A request in mid-cycle; while the devices are lent, `target="rollout"` amends the lend. None: nothing. Changes nothing."""

    def rebalance(self, view: ScheduleView) -> bool:
        """Asked once when a lend has been opened: are the requests in flight to be spread evenly over all that serve? Changes nothing."""
