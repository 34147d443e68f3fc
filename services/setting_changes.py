"""From what a user wants changed on a live run to the events that say so: all together are validated as a configuration would be.

log ─▶ SettingsNow ─ NAME=VALUE … ─▶ [Change …] ─ one append ─▶ SettingChanged …
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bus.entry import Entry, Producer
from bus.errors import ConfigError
from bus.events import Deadlines, PolicyAttached, RunEnded, RunPlanned, SettingChanged, Value
from bus.settings import DEADLINES, Settings
from services.config import RunConfig
from services.config_file import all_settings, make_config, parse_value
from services.live_settings import LIVE, key_of, reason_against
from services.local_settings import with_local_settings
from services.plan_checks import check_evaluation, check_update_mode, check_version_lag
from services.planned import config_of
from services.resolving import CLUSTER_KILL_S

KINDS = tuple(event.kind for event in (RunPlanned, SettingChanged, PolicyAttached, RunEnded))
"""All that `SettingsNow` looks at."""
OF_POLICY = "policy.params."
OPERATOR = Producer("operator", 0)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting, by the configuration's key."""

    key: str
    before: Value
    value: Value

    def event(self) -> SettingChanged:
        """What the log is told."""
        return SettingChanged(name=LIVE[self.key].name, value=self.value)


class SettingsNow:
    """Fold of a log: its settings, and where each that was changed was changed last. Feed it every entry once, in order."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.changed_at: dict[str, int] = {}
        """Name, as the log has it -> position."""
        self.policy: PolicyAttached | None = None
        """Who decides."""
        self.ended: RunEnded | None = None
        self.position = 0
        self._planned: RunPlanned | None = None

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        self.position, event = entry.position, entry.event
        match event:
            case RunPlanned():
                self._planned = event
                self.settings.apply(event)
            case SettingChanged():
                if self.settings.apply(event):
                    self.changed_at[event.name] = entry.position
            case PolicyAttached(mode="active"):
                self.policy = event
            case RunEnded():
                self.ended = event
            case _:
                pass

    def config(self, folder: Path) -> RunConfig:
        """The configuration as it is now, where the run's folder is `folder`. Raises ConfigError."""
        plan = self._planned
        if plan is None or not plan.config:
            raise ConfigError("its plan has no configuration: it was not made by `swingshift run` or `swingshift plan`")
        changed = {live.key: self.settings.changed[live.name] for live in LIVE.values() if live.name in self.settings.changed}
        return with_values(with_local_settings(config_of(plan), folder), changed, f"run {plan.run}")

    def changes(self, assignments: Sequence[str], config: RunConfig) -> list[Change]:
        """What `NAME=VALUE …` changes in `config`, in an order in which each fits to those before it.

        Raises ConfigError for what is no setting, cannot change, or does not fit.
        """
        plan = self.settings.plan
        assert plan is not None
        check_none_is_of_a_policy(assignments, plan, self.policy)
        wanted = _wanted(assignments)
        after = with_values(config, wanted, f"run {plan.run}")
        check_version_lag(after.async_training)
        check_update_mode(after.rollout)
        changes = [Change(key, value_of(config, key), value_of(after, key)) for key in wanted]
        if value_of(after, "async_training.on_redo_diverged") == "auto":
            raise ConfigError("async_training.on_redo_diverged is auto: on a live run say stop or republish")
        ordered = self._in_order([change for change in changes if change.value != change.before])
        check_evaluation(_after(self.settings, ordered), after.evaluation.temperature)
        return ordered

    def _in_order(self, changes: Sequence[Change]) -> list[Change]:
        settings, waiting, ordered = _copied(self.settings), list(changes), list[Change]()
        while waiting:
            fitting = next((change for change in waiting if settings.apply(change.event())), None)
            if fitting is None:
                names = ", ".join(f"{change.key}={change.value}" for change in waiting)
                raise ConfigError(f"{names}: the run cannot take this, though its configuration could")
            waiting.remove(fitting)
            ordered.append(fitting)
        return ordered


def with_values(config: RunConfig, values: Mapping[str, object], where: str) -> RunConfig:
    """The configuration with some settings changed, by their keys. Raises ConfigError, with messages that begin with `where`."""
    if not values:
        return config
    data = config.resolved()
    for key, value in values.items():
        *sections, name = key.split(".")
        place = data
        for section in sections:
            place = cast("dict[str, object]", place[section])
        place[name] = value
    return make_config(data, where)


def value_of(config: RunConfig, key: str) -> Value:
    """The value of a setting that can change."""
    found: object = config
    for name in key.split("."):
        found = getattr(found, name)
    assert found is None or isinstance(found, str | int | float | bool)
    return found


def shown(value: Value) -> str:
    """As it would be written in a configuration."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def said_anew(settings: Settings, config: RunConfig, assignments: Sequence[str]) -> list[SettingChanged]:
    """Of `--set` where a run goes on: what was changed on the live run before, for the log's word would count for more."""
    keys = [assignment.partition("=")[0].strip() for assignment in assignments]
    changes = [Change(key, settings.changed[LIVE[key].name], value_of(config, key)) for key in keys if _was_changed(settings, key)]
    return [change.event() for change in changes if change.value != change.before]


def raised_for_cluster(settings: Settings) -> list[SettingChanged]:
    """Of a run that was planned for one machine and goes on on a cluster: that a node is gone is heard late there.

    Nothing when the user has set it, as far as that can be told: to another value than it is by itself, or on the live run.
    """
    plan, name = settings.plan, f"{DEADLINES}kill_s"
    assert plan is not None
    is_set = plan.deadlines.kill_s != Deadlines().kill_s or name in settings.changed
    return [] if is_set else [SettingChanged(name=name, value=CLUSTER_KILL_S)]


def _was_changed(settings: Settings, key: str) -> bool:
    return key in LIVE and LIVE[key].name in settings.changed


def check_none_is_of_a_policy(assignments: Sequence[str], plan: RunPlanned, active: PolicyAttached | None) -> None:
    """A policy's own settings begin with it. Raises ConfigError, with the command that puts it in its own place with others."""
    name, params = (plan.policy, plan.policy_params) if active is None else (active.name, active.params)
    ours = {key.rpartition(".")[2] for key in all_settings()}
    for assignment in assignments:
        named, _, value = assignment.partition("=")
        setting = named.strip().removeprefix(OF_POLICY)
        if named.strip().startswith(OF_POLICY) or (setting in params and setting not in ours):
            instead = f"`swingshift policy swap {plan.run} {name} --set {setting}={value.strip() or 'VALUE'}`"
            raise ConfigError(f"{named.strip()} is a setting of a policy, with which it begins: {instead} puts it in its own place with it")


def _wanted(assignments: Sequence[str]) -> dict[str, object]:
    """Key -> value. Everything that cannot change is told at once."""
    wanted: dict[str, object] = {}
    complaints = []
    for assignment in assignments:
        named, equals, value = assignment.partition("=")
        if not equals or not named.strip():
            raise ConfigError(f"{assignment}: it must be of the form NAME=VALUE")
        key = key_of(named.strip())
        reason = reason_against(key)
        if reason is not None:
            complaints.append(f"{key} cannot change on a live run: {reason}")
        elif key in wanted:
            raise ConfigError(f"{key} is set twice")
        else:
            wanted[key] = parse_value(value, assignment)
    if complaints:
        raise ConfigError("\n".join(complaints))
    return wanted


def _copied(settings: Settings) -> Settings:
    copied = copy.copy(settings)
    copied.changed = dict(settings.changed)
    return copied


def _after(settings: Settings, changes: Sequence[Change]) -> RunPlanned:
    settings = _copied(settings)
    for change in changes:
        settings.apply(change.event())
    assert settings.plan is not None
    return settings.plan
