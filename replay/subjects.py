"""The cores that a verification recomputes, as this checkout has them, each with the digest of its code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bus.core import Core
from bus.errors import ConfigError, PolicyFailed
from bus.events import PolicyAttached
from bus.requests import ANSWERING
from policies.protocol import Policy
from policies.registry import create
from replay.core_check import Subject
from replay.limit import LIMIT_S, made_within_limit
from replay.lookahead import Attached
from services.code import service_code
from services.controller.core import ControllerCore
from services.policy import making
from services.policy.core import SOURCE, PolicyCore, label_of
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore

LISTENER = "static_fully_async"
"""Stands in where there is no policy to be made; what it decides is not compared, or listed as of other code."""
UNKNOWN = "unknown policy"


def subjects(attached: Sequence[Attached] = ()) -> tuple[Subject, ...]:
    """Trainer, rollouter, controller, the active policy, and each shadow among the policies that attach."""
    shadows = dict.fromkeys(source for source, _ in attached if source != SOURCE)
    return (
        Subject("trainer", lambda _: TrainerCore(), lambda _: service_code("trainer"), ANSWERING),
        Subject("rollouter", lambda _: RollouterCore(), lambda _: service_code("rollouter")),
        Subject("controller", lambda _: ControllerCore(), lambda _: service_code("controller")),
        Subject(SOURCE, policy_core, policy_code, ANSWERING),
        *(Subject(source, partial(shadow_core, source=source), policy_code, ANSWERING) for source in shadows),
    )


def policy_core(attached: PolicyAttached | None) -> Core:
    """The core of the policy that was attached."""
    return PolicyCore(_policy(attached) or create(LISTENER, {}))


def shadow_core(attached: PolicyAttached | None, source: str) -> Core:
    """The same for one whose verdicts change nothing, and which appends under `source`."""
    return PolicyCore(_policy(attached) or create(LISTENER, {}), "shadow", label_of(source))


def policy_code(attached: PolicyAttached | None) -> str:
    """Digest of the code of the policy service with that policy; no digest when this checkout cannot make it."""
    return UNKNOWN if attached is None or _policy(attached) is None else making.policy_code(attached.name, attached.source)


def _policy(attached: PolicyAttached | None) -> Policy | None:
    """None: no policy is attached, or one that cannot be made here; then its incarnation ran other code."""
    if attached is None:
        return None
    try:
        return made_within_limit(attached.name, partial(making.make_policy, attached.name, attached.params, attached.source), LIMIT_S)
    except (ConfigError, PolicyFailed):
        return None
