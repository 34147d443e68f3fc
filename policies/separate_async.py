"""`separate_async`: lend while the batches that the next cycle begins with are not ready, unless waiting for them is cheaper than swinging.

    threshold = min(max(round(ratio · S), R), S) ready samples, at which the devices go back     remaining = max(0, threshold − ready)
    benefit = remaining · t · (1 − b/(a+b))      t: waited seconds / waited samples of all cycles that had both; a hybrid, b standalone GPUs
    cost = mean of the last activations + mean of the last deactivations
    lend iff remaining > 0 and (t or cost is unknown, or benefit > cost), and it is not the last cycle

The ratio adapts first: after `release_steps` cycles in a row that waited more than 2 s, and after each further one, it goes up by `step_up`
(to 1 at most); after as many calm ones, and each further, down by `step_down` (to 1/K at least, which is one batch).

Example: R = 16, K = 4, so S = 64; ratio 0.4; 2 hybrid and 2 standalone GPUs. Two cycles waited 12 s for 8 samples each: t = 24/16 = 1.5 s.
The second one in a row makes the ratio 0.45: threshold = round(28.8) = 29. With 5 samples ready, remaining = 24 and benefit =
24 · 1.5 · (1 − 2/4) = 18 s. Lends took 6 and 10 s and returns 2 and 4 s: cost = 8 + 3 = 11 s. 18 > 11: lend, back at 29 ready samples.
With 17 ready, 12 · 1.5 · 0.5 = 9 s is less than that: do not lend.
Source: step switching of separate asynchronous training in verl.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, fsum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from bus.events import RunPlanned, Value
from policies.protocol import Verdict
from policies.swings import RECENT
from policies.view import RunShape, ScheduleView

IDLE_S = 2.0
"""A cycle that waited longer than this in all was idle."""


class SeparateAsyncParams(BaseModel):
    """Settings of `separate_async`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    switch_threshold_ratio: float = Field(default=0.4, gt=0, le=1)
    """Share of a cycle's samples at which lent devices go back; the one it starts from."""
    adaptive: bool = True
    """The ratio follows the waits."""
    step_up: float = Field(default=0.05, ge=0, le=1)
    step_down: float = Field(default=0.03, ge=0, le=1)
    release_steps: int = Field(default=2, ge=1)
    """Idle, or calm, cycles in a row before the ratio moves."""
    cost_window: int = Field(default=3, ge=1, le=RECENT)
    """Newest swings of each direction whose mean is taken as the cost."""


@dataclass(frozen=True, slots=True)
class SeparateAsyncRule:
    """The ratio, and what is remembered of the cycles; immutable."""

    params: SeparateAsyncParams
    ratio: float
    idle_in_row: int = 0
    calm_in_row: int = 0
    waited_s: float = 0.0
    """Seconds waited in all cycles that waited some and lacked some."""
    waited_n: int = 0
    """Samples that these cycles lacked."""

    @property
    def sample_s(self) -> float | None:
        """Seconds that a lacking sample costs (t); None: not known yet."""
        return self.waited_s / self.waited_n if self.waited_n else None

    def threshold(self, shape: RunShape) -> int:
        """Ready samples at which lent devices go back."""
        return min(max(round(self.ratio * shape.cycle_samples), shape.required_samples), shape.cycle_samples)

    def after_cycle(self, shape: RunShape, wait_s: Iterable[float], wait_n: Iterable[int]) -> Self:
        """The rule once a cycle is over whose steps waited so many seconds for so many samples."""
        seconds, samples = fsum(wait_s), sum(wait_n)
        idle = seconds > IDLE_S
        had_both = seconds > 0 and samples > 0
        told = replace(
            self,
            idle_in_row=self.idle_in_row + 1 if idle else 0,
            calm_in_row=0 if idle else self.calm_in_row + 1,
            waited_s=self.waited_s + (seconds if had_both else 0.0),
            waited_n=self.waited_n + (samples if had_both else 0),
        )
        return replace(told, ratio=_adapted_ratio(told, shape))


def _adapted_ratio(rule: SeparateAsyncRule, shape: RunShape) -> float:
    params = rule.params
    if params.adaptive and rule.idle_in_row >= params.release_steps:
        return min(1.0, rule.ratio + params.step_up)
    if params.adaptive and rule.calm_in_row >= params.release_steps:
        return max(1.0 / shape.trigger_parameter_sync_step, rule.ratio - params.step_down)
    return rule.ratio


class SeparateAsync:
    """`separate_async`, on the log."""

    def __init__(self, params: SeparateAsyncParams) -> None:
        self._params = params
        self._rule = SeparateAsyncRule(params, params.switch_threshold_ratio)

    @property
    def name(self) -> str:
        return "separate_async"

    @property
    def params(self) -> dict[str, Value]:
        return self._params.model_dump()

    @property
    def rule(self) -> SeparateAsyncRule:
        """The rule as it is now."""
        return self._rule

    def verdict(self, view: ScheduleView) -> Verdict:
        assert view.boundary is not None
        rule = self._adapted(view)
        threshold = rule.threshold(view.shape)
        remaining = max(0, threshold - view.boundary.ready)
        evidence = {"ratio": rule.ratio, "threshold": float(threshold), "ready": float(view.boundary.ready), "remaining": float(remaining)}
        known = {"sample_s": rule.sample_s, "cost_s": self._cost_s(view), "saved_share": _saved_share(view)}
        evidence |= {key: value for key, value in known.items() if value is not None}
        if remaining == 0:
            return Verdict("train", threshold, "enough_ready", evidence)
        if _is_last_cycle(view):
            return Verdict("train", threshold, "last_cycle", evidence)
        if known["sample_s"] is None or known["cost_s"] is None:
            return Verdict("rollout", threshold, "unknown", evidence)
        evidence["benefit_s"] = remaining * evidence["sample_s"] * evidence["saved_share"]
        if evidence["benefit_s"] > evidence["cost_s"]:
            return Verdict("rollout", threshold, "benefit_over_cost", evidence)
        return Verdict("train", threshold, "cost_over_benefit", evidence)

    def give_back_at(self, view: ScheduleView) -> int:
        return self._rule.threshold(view.shape)

    def decided(self, view: ScheduleView) -> None:
        self._rule = self._adapted(view)

    def lent(self, view: ScheduleView) -> None:
        """Nothing: a lend's seconds are in the view."""

    def extra(self, view: ScheduleView) -> Verdict | None:
        return None

    def rebalance(self, view: ScheduleView) -> bool:
        return False

    def _adapted(self, view: ScheduleView) -> SeparateAsyncRule:
        """The rule with the cycle that ends at the boundary in it; none ends at boundary 0."""
        if view.boundary is None or view.boundary.version == 0:
            return self._rule
        return self._rule.after_cycle(view.shape, view.wait_s, view.wait_n)

    def _cost_s(self, view: ScheduleView) -> float | None:
        """Seconds of a lend and its return; None: there was not one of each yet."""
        window = self._params.cost_window
        lends, returns = list(view.swings.activations_s)[-window:], list(view.swings.deactivations_s)[-window:]
        return fsum(lends) / len(lends) + fsum(returns) / len(returns) if lends and returns else None


def _saved_share(view: ScheduleView) -> float:
    """Of the time that the standalone replicas alone would need for some samples, the part that is saved with the hybrid ones' help."""
    plan = view.books.plan
    assert plan is not None
    hybrid, standalone = num_devices(plan, plan.hybrid), num_devices(plan, plan.standalone)
    return 1 - standalone / (hybrid + standalone)


def num_devices(plan: RunPlanned, replicas: Iterable[str]) -> int:
    """GPUs, or cores, that these replicas have together, shared ones once; one for a replica whose device is not planned."""
    return len({part for name in replicas for part in plan.devices.get(f"replica:{name}", name).split(",")})


def _is_last_cycle(view: ScheduleView) -> bool:
    """The steps that are left all lie in the cycle that begins."""
    plan = view.books.plan
    assert plan is not None
    total = plan.total_steps if plan.num_prompts is None else min(plan.total_steps, ceil(plan.num_prompts / plan.required_samples))
    return total - view.books.steps_done <= plan.trigger_parameter_sync_step
