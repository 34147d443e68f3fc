"""The settings of a run as they are now: its plan, with what was changed on the live run. All readers of the log share this one fold.

    RunPlanned ─▶ plan ─ SettingChanged(name, value) ─▶ the plan with it, from this entry on
                           └─ a value outside the limits, or one that does not fit the others: changes nothing, for any reader

Which settings those are, by the names that `swingshift set` takes, and why others are fixed: `services.live_settings`.
"""

from __future__ import annotations

from math import isfinite
from typing import TypeVar

from pydantic import Field, ValidationError

from bus.events import Deadlines, Event, RunPlanned, SettingChanged, Value
from bus.events.base import Frozen

PLANNED = (
    "staleness_threshold", "max_version_lag", "on_version_lag", "max_logprob_diff", "checkpoint_every_versions", "on_redo_diverged",
    "use_dynamic_resource_scheduling", "enable_rebalance", "max_lent_s", "partial_rollout", "max_attempts",
    "max_filtered_samples_in_a_row", "max_failed_samples_in_a_row", "eval_every_versions", "eval_n", "eval_timeout_s",
)  # fmt: skip
"""Fields of the plan that may change."""
DEADLINES = "deadlines."
"""Before the name of a deadline; all of them may change."""


class Beside(Frozen):
    """What only shells read, and can change; None: it is as the service was configured."""

    filter_groups: bool | None = None
    reward_timeout_s: float | None = Field(default=None, gt=0)
    memory_budget: int | None = Field(default=None, ge=1)
    memory_pause_at: float | None = Field(default=None, gt=0, le=1)
    memory_resume_at: float | None = Field(default=None, ge=0, le=1)


NAMES = (*PLANNED, *Beside.model_fields, *(DEADLINES + name for name in Deadlines.model_fields))
"""What a SettingChanged can name."""

Part = TypeVar("Part", bound=Frozen)


class Settings:
    """Feed it the first entry and every SettingChanged, in order; one that is fed twice is the same again. Others are ignored."""

    def __init__(self) -> None:
        self.plan: RunPlanned | None = None
        """As it is now."""
        self.beside = Beside()
        self.changed: dict[str, Value] = {}
        """Name -> value, of all that was changed."""

    def apply(self, event: Event) -> bool:
        """Takes in one event; whether it is a change that counts."""
        match event:
            case RunPlanned():
                self.plan = event
                return False
            case SettingChanged() if self.plan is not None:
                return self._change(self.plan, event.name, event.value)
            case _:
                return False

    def _change(self, plan: RunPlanned, name: str, value: Value) -> bool:
        if isinstance(value, float) and not isfinite(value):
            return False
        beside: Beside | None = self.beside
        changed: RunPlanned | None = plan
        if name in Beside.model_fields:
            beside = _with(self.beside, name, value)
        else:
            changed = _planned(plan, name, value)
        if changed is None or beside is None or not fits(changed):
            return False
        self.plan, self.beside = changed, beside
        self.changed[name] = value
        return True


def keeps_version_lag(lag: int | None, on_version_lag: str, staleness_threshold: float) -> bool:
    """Waiting keeps the version lag only if no more samples may be outstanding than so many cycles train."""
    return lag is None or on_version_lag != "wait" or lag >= staleness_threshold


def can_keep_answers(weight_update_mode: str, partial_rollout: bool) -> bool:
    """Only answers that may hold tokens of several versions can be kept over an update."""
    return partial_rollout or weight_update_mode == "abort"


def fits(plan: RunPlanned) -> bool:
    """Its settings go together."""
    return keeps_version_lag(plan.max_version_lag, plan.on_version_lag, plan.staleness_threshold) and can_keep_answers(
        plan.weight_update_mode, plan.partial_rollout
    )


def _planned(plan: RunPlanned, name: str, value: Value) -> RunPlanned | None:
    if name in PLANNED:
        return _with(plan, name, value)
    deadline = name.removeprefix(DEADLINES)
    if deadline == name or deadline not in Deadlines.model_fields:
        return None
    deadlines = _with(plan.deadlines, deadline, value)
    return plan if deadlines is plan.deadlines else None if deadlines is None else plan.model_copy(update={"deadlines": deadlines})


def _with(part: Part, name: str, value: Value) -> Part | None:
    """The part with one field changed; None when its model does not take the value."""
    try:
        checked = type(part).model_validate({**part.__dict__, name: value})
    except ValidationError:
        return None
    new = checked.__dict__[name]
    # Only the one field, and only if it changes: what else there is stays the very same objects, also when this is fed twice.
    return part if new == part.__dict__[name] else part.model_copy(update={name: new})
