"""Rules of the boundary: the part of a policy that is a formula, apart from where its numbers come from.

A `Rule` is immutable: it decides on a `BoundaryContext`, and gives its successor. `RulePolicy` runs one on a `ScheduleView`; the check of
recorded decisions (`policies.check`) runs the same one on a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

from pydantic import BaseModel, ConfigDict, Field

from bus.events import Value
from policies.protocol import Verdict
from policies.view import RunShape, ScheduleView


class RatioParams(BaseModel):
    """Settings that the rules share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deactivate_ratio: float = Field(default=0.3, ge=0, le=1)
    """Share of a cycle's samples that must be ready for lent devices to go back."""
    only_hybrid: bool | None = None
    """Take it that nobody else generates; None: as the plan's replicas say."""


@dataclass(frozen=True, slots=True)
class BoundaryContext:
    """What a boundary sees."""

    shape: RunShape
    version: int
    generated: int
    """Samples that became usable since the run began (G)."""
    expected: int
    """Samples expected by now (E)."""
    wait_s: tuple[float, ...]
    """Seconds that each step of the cycle waited."""
    wait_n: tuple[int, ...]
    """Samples that each step of the cycle lacked when it asked."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Lend or not, why, and the numbers behind it."""

    lend: bool
    reason: str
    evidence: dict[str, float]


class Rule(Protocol):
    """One formula with its memory; immutable."""

    def decide(self, context: BoundaryContext) -> Decision:
        """Lend?"""

    def updated(self, context: BoundaryContext) -> Self:
        """The rule after the boundary."""

    def with_cost(self, seconds: float) -> Self:
        """The rule that knows what a lend and its return cost."""

    def ratio_in(self, shape: RunShape) -> float:
        """Share of a cycle's samples at which lent devices go back."""

    def give_back_at(self, shape: RunShape) -> int:
        """Ready samples at which lent devices go back."""


class RulePolicy:
    """Runs a rule on the log."""

    def __init__(self, name: str, params: RatioParams, rule: Rule) -> None:
        self._name = name
        self._params = params
        self._rule = rule

    @property
    def name(self) -> str:
        return self._name

    @property
    def params(self) -> dict[str, Value]:
        return self._params.model_dump()

    @property
    def rule(self) -> Rule:
        """The rule as it is now."""
        return self._rule

    def verdict(self, view: ScheduleView) -> Verdict:
        # Devices lent now are given back by the ratio of the cycle that begins, so the answer already carries the updated one.
        context = self._context(view)
        rule = self._with_pending_cost(view)
        decision = rule.decide(context)
        give_back_at = rule.updated(context).give_back_at(context.shape)
        return Verdict("rollout" if decision.lend else "train", give_back_at, decision.reason, decision.evidence)

    def give_back_at(self, view: ScheduleView) -> int:
        return self._rule.give_back_at(self.shape(view))

    def decided(self, view: ScheduleView) -> None:
        self._rule = self._with_pending_cost(view).updated(self._context(view))

    def lent(self, view: ScheduleView) -> None:
        """Nothing: what a lend cost is known in full when the devices are back."""

    def extra(self, view: ScheduleView) -> Verdict | None:
        return None

    def rebalance(self, view: ScheduleView) -> bool:
        return False

    def shape(self, view: ScheduleView) -> RunShape:
        """The run's numbers, as this policy's settings make them."""
        only_hybrid = self._params.only_hybrid
        return view.shape if only_hybrid is None else replace(view.shape, only_hybrid=only_hybrid)

    def _context(self, view: ScheduleView) -> BoundaryContext:
        boundary = view.boundary
        assert boundary is not None
        shape = self.shape(view)
        return BoundaryContext(
            shape, boundary.version, boundary.generated, shape.expected_samples(boundary.version), tuple(view.wait_s), tuple(view.wait_n)
        )

    def _with_pending_cost(self, view: ScheduleView) -> Rule:
        """The cost that belongs to the boundary before: the lend which it decided has ended only by now. Boundary 0 records none."""
        assert view.boundary is not None
        if view.boundary.version < 2:
            return self._rule
        return self._rule.with_cost(view.swings.this_cycle.activation_s + view.swings.last_cycle.deactivation_s)
