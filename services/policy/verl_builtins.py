"""verl's own policies, for files with a subclass of one: the rules of policies/ in verl's interface.

`default` keeps its ratio in [0, 1], as policies/default.py does; the original forgets that below 0.
"""

from __future__ import annotations

from services.policy.verl_names import DynamicScheduleContext, DynamicSchedulePolicyBase, Rollouter, get

FIRST_SAMPLE_S = 1000.0
FIRST_COST_S = 10.0
COST_WINDOW = 3
STEP_DOWN = 0.02
STEP_UP_MIN, STEP_UP_MAX = 0.02, 0.1


class StaticFullyAsyncPolicy(DynamicSchedulePolicyBase):
    """Gives back at once what is lent, and never lends."""

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False) -> None:
        self.only_hybrid = only_hybrid
        self.deactivate_ratio = 1.0 if only_hybrid else deactivate_ratio

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return 0

    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return False


class FixedRatioDynamicSchedulePolicy(StaticFullyAsyncPolicy):
    """Lends while less than a share of a cycle is ahead, and gives back at that share (policies/fixed_ratio.py)."""

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return int(ctx.step_required_samples * self.deactivate_ratio)

    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return self.only_hybrid or ctx.total_generated_samples - ctx.expected_samples < self.deactivate_ratio * ctx.step_required_samples

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        rollouter: Rollouter | None = self._rollouter
        if rollouter is not None:
            get(rollouter.rebalance_requests.remote())


class DefaultDynamicSchedulePolicy(FixedRatioDynamicSchedulePolicy):
    """Lends while the expected gain exceeds what the swings cost; the ratio follows the waits (policies/default.py)."""

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False) -> None:
        super().__init__(deactivate_ratio, only_hybrid)
        self._sample_s = FIRST_SAMPLE_S
        self._costs_s: list[float] = []

    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        if self.only_hybrid:
            return True
        gap = self.deactivate_ratio * ctx.step_required_samples - (ctx.total_generated_samples - ctx.expected_samples)
        if gap <= 0:
            return False
        waited_s, lacking = sum(ctx.step_wait_times), sum(ctx.step_wait_samples)
        if waited_s > 0 and lacking > 0:
            self._sample_s = waited_s / lacking
        cost_s = sum(self._costs_s) / len(self._costs_s) if self._costs_s else FIRST_COST_S
        return gap * self._sample_s - cost_s > 0

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        if global_steps <= 0 or self.only_hybrid:
            return
        swings_s = ctx.last_activate_duration_s + ctx.last_deactivate_duration_s
        self._costs_s = [*self._costs_s, swings_s][-COST_WINDOW:] if swings_s > 0 else self._costs_s
        lacking = sum(ctx.step_wait_samples)
        step = min(max(lacking / ctx.step_required_samples, STEP_UP_MIN), STEP_UP_MAX) if lacking > 0 else -STEP_DOWN
        self.deactivate_ratio = min(max(self.deactivate_ratio + step, 0.0), 1.0)


MODULES: dict[str, type[DynamicSchedulePolicyBase]] = {
    "default_policy": DefaultDynamicSchedulePolicy,
    "fixed_ratio_policy": FixedRatioDynamicSchedulePolicy,
    "static_fully_async_policy": StaticFullyAsyncPolicy,
}
"""Module of verl's package -> the policy in it."""
