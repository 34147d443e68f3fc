"""`fixed_ratio`: lend while fewer samples are ahead than a fixed share of a cycle, and give back at that share.

lend iff G − E < ratio · S        give back at floor(ratio · S) ready samples
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Self

from policies.rule import BoundaryContext, Decision, RatioParams, RulePolicy
from policies.view import RunShape


class FixedRatioParams(RatioParams):
    """Settings of `fixed_ratio`."""


@dataclass(frozen=True, slots=True)
class FixedRatioRule:
    """The formula; it remembers nothing."""

    ratio: float

    def decide(self, context: BoundaryContext) -> Decision:
        ratio = self.ratio_in(context.shape)
        ahead = context.generated - context.expected
        evidence = {"ratio": ratio, "generated": float(context.generated), "expected": float(context.expected)}
        if context.shape.only_hybrid:
            return Decision(True, "only_hybrid", evidence)
        if ahead < ratio * context.shape.cycle_samples:
            return Decision(True, "below_ratio", evidence)
        return Decision(False, "above_ratio", evidence)

    def updated(self, context: BoundaryContext) -> Self:
        return self

    def with_cost(self, seconds: float) -> Self:
        return self

    def ratio_in(self, shape: RunShape) -> float:
        return 1.0 if shape.only_hybrid else self.ratio

    def give_back_at(self, shape: RunShape) -> int:
        return floor(shape.cycle_samples * self.ratio_in(shape))


class FixedRatio(RulePolicy):
    """`fixed_ratio`, on the log."""

    def __init__(self, params: FixedRatioParams) -> None:
        super().__init__("fixed_ratio", params, FixedRatioRule(params.deactivate_ratio))
