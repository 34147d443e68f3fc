"""Three policies against verl's interface, as they would lie in a verl checkout: swingshift runs this file as it is."""

import ray
from verl.experimental.fully_async_policy.dynamic_schedule import (
    DynamicScheduleContext,
    DynamicSchedulePolicyBase,
    register_policy,
)


class RatioPolicy(DynamicSchedulePolicyBase):
    """Gives lent devices back once a share of a cycle's samples is ready."""

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False):
        self.only_hybrid = only_hybrid
        self.deactivate_ratio = 1.0 if only_hybrid else deactivate_ratio
        print(f"{type(self).__name__}: ratio {self.deactivate_ratio}, only_hybrid {only_hybrid}")

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return int(self.deactivate_ratio * ctx.step_required_samples)

    def lacking(self, ctx: DynamicScheduleContext) -> float:
        """Samples between what is there and the share that is wanted."""
        return self.deactivate_ratio * ctx.step_required_samples - (ctx.total_generated_samples - ctx.expected_samples)

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        moved = ray.get(self._rollouter.rebalance_requests.remote())
        print(f"asked for a rebalance at version {global_steps}: {moved}")


@register_policy("default")
class AdaptiveRatio(RatioPolicy):
    """Lends when the lacking samples cost more than the swings, and follows the waits with its ratio."""

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False):
        super().__init__(deactivate_ratio, only_hybrid)
        self.sample_s = 1000.0
        self.costs_s: list[float] = []

    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        if self.only_hybrid:
            return True
        lacking = self.lacking(ctx)
        if lacking <= 0:
            return False
        if sum(ctx.step_wait_times) > 0 and sum(ctx.step_wait_samples) > 0:
            self.sample_s = sum(ctx.step_wait_times) / sum(ctx.step_wait_samples)
        newest = self.costs_s[-3:] or [10.0]
        cost_s = sum(newest) / len(newest)
        print(f"version {global_steps}: {lacking:.1f} samples of {self.sample_s:.2f} s against swings of {cost_s:.1f} s")
        return lacking * self.sample_s > cost_s

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        if global_steps == 0 or self.only_hybrid:
            return
        swings_s = ctx.last_activate_duration_s + ctx.last_deactivate_duration_s
        if swings_s > 0:
            self.costs_s.append(swings_s)
        waited_for = sum(ctx.step_wait_samples)
        change = min(max(waited_for / ctx.step_required_samples, 0.02), 0.1) if waited_for else -0.02
        self.deactivate_ratio = min(max(self.deactivate_ratio + change, 0.0), 1.0)


@register_policy("fixed_ratio")
class FixedRatio(RatioPolicy):
    """Lends when the share that is wanted is not there."""

    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return self.only_hybrid or self.lacking(ctx) > 0


@register_policy("static_fully_async")
class Never(RatioPolicy):
    """Never lends."""

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return 0

    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return False
