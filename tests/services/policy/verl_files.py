"""Files that were written for verl, and what the tests do with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bus.events import DeadlineMissed, PolicyAttached, RebalanceRequested, SwitchRequested, Value
from services.policy.core import PolicyCore
from services.policy.making import make_policy
from tests.policies.logs import Story

ROOT = Path(__file__).parents[3]
RATIO_POLICIES = (ROOT / "examples" / "verl" / "ratio_policies.py").read_text()
GOLDEN = (ROOT / "tests" / "golden" / "policy_decisions.json").read_text()
HEAD = """\
import ray
from verl.experimental.fully_async_policy.dynamic_schedule import DynamicScheduleContext, DynamicSchedulePolicyBase, register_policy

"""
TELLING = (
    HEAD
    + """\
class Telling(DynamicSchedulePolicyBase):
    def __init__(self, deactivate_ratio=0.5, only_hybrid=False):
        self.wanted = [True, False, True]
        print("made", deactivate_ratio, only_hybrid)

    def should_deactivate(self, global_steps, is_hybrid_active, ctx):
        print("should_deactivate", global_steps, is_hybrid_active, ctx.last_activate_duration_s, ctx.last_deactivate_duration_s)
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx):
        print("deactivate_wait_samples")
        return 5

    def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
        print("should_activate_after_step", global_steps, is_hybrid_active, ctx.last_activate_duration_s, ctx.last_deactivate_duration_s)
        return self.wanted[global_steps]

    def request_rebalance(self, global_steps, ctx):
        print("request_rebalance", global_steps, ctx.last_activate_duration_s)

    def update_after_step(self, global_steps, ctx):
        print("update_after_step", global_steps, ctx.last_activate_duration_s, ctx.last_deactivate_duration_s)
"""
)


def small(**bodies: str) -> str:
    """A file with a class `Mine`, whose methods have these bodies."""
    methods = {
        "should_deactivate(self, global_steps, is_hybrid_active, ctx)": "return is_hybrid_active",
        "deactivate_wait_samples(self, ctx)": "return 5",
        "should_activate_after_step(self, global_steps, is_hybrid_active, ctx)": "return True",
        "request_rebalance(self, global_steps, ctx)": None,
        "update_after_step(self, global_steps, ctx)": None,
    }
    lines = [HEAD + "class Mine(DynamicSchedulePolicyBase):"]
    for method, usual in methods.items():
        body = bodies.get(method.partition("(")[0], usual)
        lines += [] if body is None else [f"    def {method}:", *(f"        {line}" for line in body.splitlines())]
    return "\n".join([*lines, *bodies.get("more", "").splitlines(), ""])


def mine(source: str, params: Mapping[str, Value] | None = None, name: str = "mine.py:Mine") -> PolicyCore:
    return PolicyCore(make_policy(name, params or {}, source))


def join(story: Story, core: PolicyCore) -> PolicyCore:
    story.attach(core, PolicyAttached(name=core.policy.name, params=core.policy.params, mode="active", code="c"))
    return core


def requests(story: Story) -> list[SwitchRequested]:
    return [entry.event for entry in story.entries if isinstance(entry.event, SwitchRequested)]


def rebalances(story: Story) -> int:
    return sum(isinstance(entry.event, RebalanceRequested) and entry.source == "policy" for entry in story.entries)


def varied(story: Story) -> None:
    """Some cycles in which devices are lent or not, waits are long or short, answers come or are missed."""
    story.open_first_boundary()
    for version in range(7):
        if version == 4:
            story.write(DeadlineMissed(key=f"verdict:{version}", seconds=5.0))
        newest = requests(story)[-1:]
        if newest and newest[0].answers == version and newest[0].target == "rollout":
            story.lend(1.5 + version, give_back_at=newest[0].give_back_at, answers=version)
            story.give_back(0.5)
        else:
            story.grant()
        waits = (0.0, 0) if version in (2, 5) else (2.0 + 3 * version, 1 + version % 3)
        story.cycle(*waits)
