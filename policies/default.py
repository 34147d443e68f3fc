"""`default`: lend while the expected gain in waiting time exceeds what the swings cost; the ratio adapts to how much the trainer waited.

    gap = ratio · S − (G − E)         lend iff gap > 0 and gap · (seconds a lacking sample costs) > (seconds a lend and its return cost)
    ratio += clip(Σ wait_n / S, 0.02, 0.1) after a cycle that lacked samples, else −= 0.02; kept in [0, 1]

Example: S = 64, ratio 0.6, all 64 expected samples and 6 more were generated: gap = 38.4 − 6 = 32.4. The cycle waited 30 s for 20 samples
in all, 1.5 s each; swings cost 13.3 s. 32.4 · 1.5 = 48.6 > 13.3: lend, and give back at floor(64 · 0.7) = 44 ready samples.
Source: the policy of the same name in verl, but for the lower limit of the ratio, which verl lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, fsum
from typing import Self

from policies.rule import BoundaryContext, Decision, RatioParams, RulePolicy
from policies.view import RunShape

FIRST_SAMPLE_S = 1000.0
"""Seconds that a lacking sample costs until it was measured: so many that the first gap leads to a lend."""
FIRST_COST_S = 10.0
"""Seconds of a lend and its return until measured."""
COST_WINDOW = 3
STEP_DOWN = 0.02
STEP_UP_MIN, STEP_UP_MAX = 0.02, 0.1


class DefaultParams(RatioParams):
    """Settings of `default`; the ratio is the one it starts from."""


@dataclass(frozen=True, slots=True)
class DefaultRule:
    """The formula and its memory."""

    ratio: float
    sample_s: float = FIRST_SAMPLE_S
    costs_s: tuple[float, ...] = ()

    @property
    def cost_s(self) -> float:
        """Seconds that a lend and its return are expected to cost."""
        return fsum(self.costs_s) / len(self.costs_s) if self.costs_s else FIRST_COST_S

    def decide(self, context: BoundaryContext) -> Decision:
        if context.shape.only_hybrid:
            return Decision(True, "only_hybrid", {"ratio": 1.0})
        gap = self._gap(context)
        sample_s = self._renewed_sample_s(context)
        evidence = {
            "ratio": self.ratio,
            "gap": gap,
            "sample_s": sample_s,
            "cost_s": self.cost_s,
            "generated": float(context.generated),
            "expected": float(context.expected),
        }
        if gap <= 0:
            return Decision(False, "no_gap", evidence)
        if gap * sample_s - self.cost_s > 0:
            return Decision(True, "gain_over_cost", evidence)
        return Decision(False, "cost_over_gain", evidence)

    def updated(self, context: BoundaryContext) -> Self:
        if context.shape.only_hybrid:
            return self
        sample_s = self._renewed_sample_s(context)
        if context.version == 0:
            return replace(self, sample_s=sample_s)
        lacking = sum(context.wait_n)
        step = min(max(lacking / context.shape.cycle_samples, STEP_UP_MIN), STEP_UP_MAX) if lacking > 0 else -STEP_DOWN
        return replace(self, ratio=min(max(self.ratio + step, 0.0), 1.0), sample_s=sample_s)

    def with_cost(self, seconds: float) -> Self:
        return replace(self, costs_s=(*self.costs_s, seconds)[-COST_WINDOW:]) if seconds > 0 else self

    def ratio_in(self, shape: RunShape) -> float:
        return 1.0 if shape.only_hybrid else self.ratio

    def give_back_at(self, shape: RunShape) -> int:
        return floor(shape.cycle_samples * self.ratio_in(shape))

    def _gap(self, context: BoundaryContext) -> float:
        return self.ratio * context.shape.cycle_samples - (context.generated - context.expected)

    def _renewed_sample_s(self, context: BoundaryContext) -> float:
        waited_s, lacking = fsum(context.wait_s), sum(context.wait_n)
        return waited_s / lacking if self._gap(context) > 0 and waited_s > 0 and lacking > 0 else self.sample_s


class Default(RulePolicy):
    """`default`, on the log."""

    def __init__(self, params: DefaultParams) -> None:
        super().__init__("default", params, DefaultRule(params.deactivate_ratio))
