"""The policy as a process: it only decides. `PolicyAttached` is its first word and its fence."""

from __future__ import annotations

from bus.events import PolicyAttached
from policies.registry import create
from services.context import ServiceContext
from services.policy.core import PolicyCore
from services.shell import Idle, Shell


def main(context: ServiceContext) -> None:
    """Runs the policy that the plan names until the run has ended."""
    policy = create(context.plan.policy, context.plan.policy_params)
    attached = PolicyAttached(name=policy.name, params=dict(policy.params), mode="active", code=context.code)
    Shell(context, PolicyCore(policy), Idle(), attached).run()
