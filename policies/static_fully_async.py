"""`static_fully_async`: never lend, give back at once what is lent: plain fully asynchronous training, the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from policies.rule import BoundaryContext, Decision, RatioParams, RulePolicy
from policies.view import RunShape


class StaticFullyAsyncParams(RatioParams):
    """Settings of `static_fully_async`. The ratio has no effect; it is taken so that the settings of another policy fit, too."""


@dataclass(frozen=True, slots=True)
class StaticFullyAsyncRule:
    """No formula at all."""

    ratio: float

    def decide(self, context: BoundaryContext) -> Decision:
        return Decision(False, "static", {})

    def updated(self, context: BoundaryContext) -> Self:
        return self

    def with_cost(self, seconds: float) -> Self:
        return self

    def ratio_in(self, shape: RunShape) -> float:
        return 1.0 if shape.only_hybrid else self.ratio

    def give_back_at(self, shape: RunShape) -> int:
        return 0


class StaticFullyAsync(RulePolicy):
    """`static_fully_async`, on the log."""

    def __init__(self, params: StaticFullyAsyncParams) -> None:
        super().__init__("static_fully_async", params, StaticFullyAsyncRule(params.deactivate_ratio))
