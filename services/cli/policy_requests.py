"""What to ask a run for when a user wants another policy: checked against the run's log and made here once, before anybody is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bus.errors import ConfigError
from bus.events import PolicyRequested, Value
from policies.registry import nearest
from services.cli.policy_state import PolicyState
from services.config_file import parse_value
from services.monitor.policy_history import Chosen
from services.policy.core import SOURCE
from services.policy.making import make_policy
from services.policy.roster import Attachment
from services.policy.source import check_label, label_like, read_source, short_name


def policy_settings(assignments: Sequence[str]) -> dict[str, Value]:
    """Settings of a policy from `name=value`, the value in YAML. Raises ConfigError."""
    params: dict[str, Value] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ConfigError(f"--set {text}: it must be of the form name=value, such as deactivate_ratio=0.6")
        parsed = parse_value(value, f"--set {text}")
        if not isinstance(parsed, str | int | float | bool | None):
            kind = type(parsed).__name__
            raise ConfigError(f"--set {text}: a setting of a policy is a number, a text, true, false or null, not a {kind}")
        params[name.strip()] = parsed
    return params


def swap_request(name: str, params: Mapping[str, Value]) -> PolicyRequested:
    """Another policy decides. Raises ConfigError when it cannot be made."""
    return _made("swap", name, params)


def shadow_request(state: PolicyState, name: str, params: Mapping[str, Value], label: str | None) -> PolicyRequested:
    """A policy watches, under a label that no shadow of this run has had. Raises ConfigError."""
    if label is not None:
        check_label(label)
    request, roster = _made("shadow", name, params), state.roster
    if label is None:
        return request.model_copy(update={"label": roster.free_label(label_like(short_name(name)))})
    if label in roster.labels:
        watching = roster.shadows.get(label)
        whose = "was that of a shadow of this run before" if watching is None else f"is that of {words_of(watching)}, which watches"
        raise ConfigError(f"--label {label} {whose}: choose another one, {roster.free_label(label_like(label))} is free")
    return request.model_copy(update={"label": label})


def promote_request(state: PolicyState, label: str) -> PolicyRequested:
    """What a shadow runs decides, in its place. Raises ConfigError."""
    active = state.roster.active
    if label not in state.roster.shadows and active is not None and label in (SOURCE, active.event.name, active.event.label):
        raise ConfigError(f"{words_of(active)} decides already, since entry {_since(state, active)}")
    return _as_before("promote", _shadow(state, label), label)


def rollback_request(state: PolicyState) -> PolicyRequested:
    """What decided before the present one decides again. Raises ConfigError."""
    former, active = state.roster.former, state.roster.active
    if former is not None:
        return _as_before("rollback", former)
    if active is None:
        raise ConfigError("there is nothing to go back to: no policy has attached yet")
    since = _since(state, active)
    raise ConfigError(f"there is nothing to go back to: {words_of(active)} decides since entry {since}, and none did before it")


def detach_request(state: PolicyState, label: str) -> PolicyRequested:
    """A shadow ends. Raises ConfigError."""
    _shadow(state, label)
    return PolicyRequested(action="detach", label=label)


def words_of(attachment: Attachment) -> str:
    """A policy by name and settings."""
    event = attachment.event
    return f"policy {Chosen.of(event.name, event.params, event.source)}"


def _made(action: str, name: str, params: Mapping[str, Value]) -> PolicyRequested:
    source = read_source(name)
    make_policy(name, params, source)
    return PolicyRequested.model_validate({"action": action, "name": name, "params": dict(params), "source": source})


def _as_before(action: str, attachment: Attachment, label: str = "") -> PolicyRequested:
    event = attachment.event
    fields = {"action": action, "name": event.name, "params": dict(event.params), "source": event.source, "label": label}
    return PolicyRequested.model_validate(fields)


def _shadow(state: PolicyState, label: str) -> Attachment:
    shadows = state.roster.shadows
    if label in shadows:
        return shadows[label]
    if not shadows:
        raise ConfigError(f"there is no shadow {label!r}: none watches; `swingshift policy shadow RUN NAME` starts one")
    known = tuple(shadows)
    gone = " any more" if label in state.roster.labels else ""
    raise ConfigError(f"there is no shadow {label!r}{gone}: did you mean {nearest(label, known)!r}? There are {', '.join(known)}")


def _since(state: PolicyState, attachment: Attachment) -> int:
    """Where it began to decide: before its restarts."""
    active = state.history.active
    return attachment.position if active is None else active.position
