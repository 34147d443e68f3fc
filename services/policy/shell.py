"""The policy as a process: it only decides. `PolicyAttached` is its first word and its fence.

the plan's, or restarted:  PolicyAttached ─▶ rebuild ─▶ answers …
asked for (candidate):     warms up, answers in trial (candidate.py) ─▶ PolicyAttached ─▶ answers …
replaced by a newer one:   ends by itself, fenced            a shadow that was promoted, or is to end: PolicyDetached
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from bus.entry import Entry
from bus.errors import ConfigError, Fenced
from bus.events import Event, PolicyAttached, PolicyDetached, PolicyRequested, Value
from bus.snapshot_table import core_code
from policies.protocol import Policy
from services.context import ServiceContext
from services.policy.candidate import Candidate, Choice, Ended
from services.policy.core import Mode, PolicyCore, label_of
from services.policy.making import make_policy, policy_code
from services.policy.trial import Trial
from services.shell import Leaving, Shell
from services.snapshots import Snapshots

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which policy this process runs, and who chose it."""

    name: str
    params: Mapping[str, Value]
    source: str
    promoted: str = ""
    """The shadow that it was promoted from."""


def main(context: ServiceContext) -> None:
    """Runs the policy that the plan, or a request, names, until the run has ended or another one takes its place."""
    if not context.supervised:
        from services.launcher.serving import keep_policies

        keep_policies(context)
        return
    chosen = chosen_policy(context)
    if context.spec.candidate:
        _try(context, chosen)
    else:
        core = _core(context, chosen)
        context, attached = _introduced(context, chosen, core.policy)
        Shell(context, core, Watch(context, attached), attached).run()


def chosen_policy(context: ServiceContext) -> Chosen:
    """What the plan says, or the request that this process carries out. Raises ConfigError, LogError, ServerError."""
    plan = context.plan
    if not context.spec.request:
        return Chosen(plan.policy, plan.policy_params, plan.policy_source)
    with context.open_history() as history:
        entries = history.read(context.spec.request - 1, 1)
    event = entries[0].event if entries else None
    if not isinstance(event, PolicyRequested):
        raise ConfigError(f"entry {context.spec.request} of run {context.run} asks for no policy, it is {event!r}")
    return Chosen(event.name, event.params, event.source, event.label if event.action == "promote" else "")


def _introduced(context: ServiceContext, chosen: Chosen, policy: Policy) -> tuple[ServiceContext, PolicyAttached]:
    """The context with the code of this policy, and the policy's first word. Raises ConfigError."""
    context = replace(context, code=policy_code(chosen.name, chosen.source))
    attached = PolicyAttached(
        name=policy.name,
        params=dict(policy.params),
        mode="shadow" if context.name else "active",
        code=context.code,
        request=context.spec.request,
        label=context.name or chosen.promoted,
        source=chosen.source,
        token=context.spec.token,
    )
    return context, attached


def _core(context: ServiceContext, chosen: Chosen) -> PolicyCore:
    mode: Mode = "shadow" if context.name else "active"
    return PolicyCore(make_policy(chosen.name, chosen.params, chosen.source), mode, context.name)


def _try(context: ServiceContext, chosen: Chosen) -> None:
    """Becomes the policy once it has caught up; else says why not. Raises ConfigError, LogError, ServerError."""
    trial = Trial(context.folder, context.spec.request)
    try:
        core = _core(context, chosen)
        context, attached = _introduced(context, chosen, core.policy)
    except ConfigError as error:
        trial.fails(str(error))
        raise
    with closing(Snapshots(context, context.source, core_code(context.code, attached))) as snapshots:
        candidate = Candidate(context, Choice(lambda: _core(context, chosen), chosen.name), core, trial, snapshots)
        try:
            candidate.catch_up()
        except Ended:
            logger.info("the run ended before the candidate had caught up: policy=%s", chosen.name)
            return
    trial.at("attach")
    Shell(context, candidate.core, Watch(context, attached), attached, candidate).run()


class Watch:
    """Ends a policy that was replaced, and a shadow that was promoted or is to end."""

    def __init__(self, context: ServiceContext, attached: PolicyAttached) -> None:
        self._source = context.source
        self._attached = attached
        self._shell: Shell | None = None

    def recovered(self, shell: Shell) -> None:
        self._shell = shell

    def prepare(self, events: Sequence[Event]) -> None: ...

    def look(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            match entry.event:
                case PolicyAttached() if entry.source == self._source and entry.epoch > self._epoch:
                    raise Fenced(f"{entry.event.name}, epoch {entry.epoch}, has taken the place of epoch {self._epoch}")
                case PolicyAttached(mode="active") as event if self._is_me(event.label) and event.request > self._attached.request:
                    raise Leaving(PolicyDetached(name=self._attached.name, reason="promoted"))
                case PolicyRequested(action="detach") as event if self._is_me(event.label):
                    raise Leaving(PolicyDetached(name=self._attached.name, reason="asked to end"))
                case _:
                    pass

    def durable(self, position: int) -> int:
        return position

    def close(self) -> None: ...

    @property
    def _epoch(self) -> int:
        assert self._shell is not None
        return self._shell.host.producer.epoch

    def _is_me(self, label: str) -> bool:
        return bool(label) and label == label_of(self._source)
