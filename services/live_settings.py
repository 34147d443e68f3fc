"""Which settings can change on a live run, who honours them from then on, and of every other one why it cannot.

    swingshift set RUN staleness_threshold=1 ─▶ find ▸ validate with all that is set ▸ SettingChanged ─▶ bus.settings in every reader

A setting can change live when all who need it read it from the log: what a replica is told comes by its inbox alone, and what weights
depend on must be the same when steps are trained again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from bus.errors import ConfigError
from bus.events import Deadlines
from bus.settings import DEADLINES
from services.config import FROM_OTHER_SECTIONS
from services.config_file import all_settings, unknown_setting


@dataclass(frozen=True, slots=True)
class Live:
    """A setting that can change."""

    key: str
    """As the configuration has it."""
    name: str
    """As SettingChanged has it."""
    honoured_by: str
    takes_effect: str


def _timing(name: str, honoured_by: str, takes_effect: str) -> Live:
    return Live(f"async_training.{name}", name, honoured_by, takes_effect)


def _rollout(name: str, honoured_by: str, takes_effect: str) -> Live:
    return Live(f"rollout.{name}", name, honoured_by, takes_effect)


def _deadline(name: str) -> Live:
    when = "counted as before, from when it began" if name != "start_s" else "of replicas that start; the run's own start is over"
    return Live(f"deadlines.{name}", f"{DEADLINES}{name}", "controller", when)


LIVE: Mapping[str, Live] = {
    live.key: live
    for live in (
        _timing("staleness_threshold", "rollouter, controller, policy", "at once; when lowered, no sample is started until they fit"),
        _timing("max_version_lag", "trainer", "at once: samples that are over it are dropped"),
        _timing("on_version_lag", "trainer", "with the next batch"),
        _timing("max_logprob_diff", "trainer, monitor", "with the next step; it is only about warnings"),
        _timing("checkpoint_every_versions", "trainer", "with the next publication"),
        _timing("on_redo_diverged", "trainer", "with the next restart"),
        _timing("use_dynamic_resource_scheduling", "controller, policy", "at once; devices that are lent go back as planned"),
        _timing("enable_rebalance", "rollouter", "when the next replica is added or woken"),
        _timing("max_lent_s", "controller", "with the next lend"),
        _rollout("partial_rollout", "rollouter", "for answers that move from then on"),
        _rollout("max_attempts", "rollouter", "at the next error"),
        _rollout("max_filtered_samples_in_a_row", "controller", "at once"),
        _rollout("max_failed_samples_in_a_row", "controller", "at once"),
        _rollout("filter_groups", "rollouter", "for samples that are scored from then on"),
        _rollout("reward_timeout_s", "rollouter", "for rewards that are begun from then on"),
        Live("evaluation.every_versions", "eval_every_versions", "rollouter, controller, trainer", "with the next publication"),
        Live("evaluation.n", "eval_n", "rollouter", "with the next evaluation"),
        Live("evaluation.eval_timeout_s", "eval_timeout_s", "controller", "at once, counted from when the evaluation began"),
        Live("redis.memory_budget", "memory_budget", "archiver", "within a second"),
        Live("redis.memory_pause_at", "memory_pause_at", "archiver", "within a second"),
        Live("redis.memory_resume_at", "memory_resume_at", "archiver", "within a second"),
        *(_deadline(name) for name in Deadlines.model_fields),
    )
}
"""By the configuration's key."""

_TOTALS = "steps, cycles, data epochs and the learning rate's schedule were counted with it when the run was planned"
_INBOX = "a replica reads it when it starts, and all answers of a sample are drawn alike; the trainer compares probabilities at it, too"
_MEMORY = "memory is allocated by it when a process starts"
_SUPERVISOR = "it is read when the run is started; it can change with `swingshift run --resume RUN --set`"
_WEIGHTS = "weights depend on it: steps that are trained again after a restart, or by `replay train`, must give the same bits"

FIXED: Mapping[str, str] = {
    "model": "the model is made or read before the first step",
    "data": "it fixes which prompts come, in which order, and what they are worth: the seeds and totals of the plan follow from it",
    "rollout.engine": "a replica starts its engine with it",
    "rollout.n": "token budgets, batches and advantages are counted in answers of a sample, and those in flight have theirs",
    "rollout.temperature": _INBOX,
    "rollout.top_p": _INBOX,
    "rollout.top_k": _INBOX,
    "rollout.stop_token_ids": _INBOX,
    "rollout.weight_update_mode": "replicas set up their engines' caches for it when they start",
    "rollout.max_prompt_length": _MEMORY,
    "rollout.max_response_length": _MEMORY,
    "rollout.max_running_requests": _MEMORY,
    "rollout.queued_requests": "a replica says how much it takes when it starts",
    "rollout.gpu_memory_utilization": _MEMORY,
    "rollout.standalone_gpu_memory_utilization": _MEMORY,
    "rollout.reward_workers": "the rollouter starts its workers when it starts itself",
    "rollout.engine_kwargs": "a replica starts its engine with it",
    "actor": _WEIGHTS,
    "trainer": _MEMORY,
    "async_training.ppo_mini_batch_size": _TOTALS,
    "async_training.require_batches": _TOTALS,
    "async_training.trigger_parameter_sync_step": _TOTALS,
    "async_training.total_steps": f"{_TOTALS}; `swingshift stop` ends a run earlier",
    "async_training.num_prompts": _TOTALS,
    "async_training.total_epochs": _TOTALS,
    "async_training.tail": "the number of steps was worked out with it",
    "evaluation.before_train": "it is over when a run has begun",
    "evaluation.temperature": "a replica reads it when it starts",
    "evaluation.top_p": "a replica reads it when it starts",
    "evaluation.top_k": "a replica reads it when it starts",
    "replicas": "the plan names every replica, with its devices",
    "policy": "a policy begins with its settings; `swingshift policy swap` puts another in its place",
    "devices": "services are bound to their devices when they start",
    "cluster": "what services take is reserved when the run is started; it can change with `swingshift run --resume RUN --set`",
    "weights": "trainer and replicas agree on it when they start",
    "redis.url": "it is where the run is",
    "redis.ca_file": "it belongs to this machine; it can change with `swingshift run --resume RUN --set`",
    "supervisor": _SUPERVISOR,
    "monitor": _SUPERVISOR,
    "scripted": "engines and learner start with it",
    "folder": "it is where the run is",
}
"""Setting, or section, -> why it cannot change on a live run."""


def key_of(named: str) -> str:
    """The configuration's key of a setting that the user named in full, as the log has it, or by its last part.

    Raises ConfigError for an unknown name, which says the nearest known one, and for one that several settings have.
    """
    known = list(all_settings())
    if named in known:
        return named
    found = [live.key for live in LIVE.values() if live.name == named] or [key for key in known if key.rpartition(".")[2] == named]
    if len(found) > 1:
        raise ConfigError(f"{named} may be {' or '.join(found)}: name it in full")
    if not found:
        raise ConfigError(_unknown(named, known))
    return found[0]


def _unknown(named: str, known: Sequence[str]) -> str:
    last_parts = {key.rpartition(".")[2]: key for key in (*known, *LIVE)}
    similar = get_close_matches(named, last_parts, n=1)
    return f"{named} is no setting: did you mean {last_parts[similar[0]]}?" if similar else unknown_setting(named.split("."))


def reason_against(key: str) -> str | None:
    """Why a setting of the configuration cannot change on a live run; None when it can."""
    if key in LIVE:
        return None
    section, _, name = key.partition(".")
    parts = FROM_OTHER_SECTIONS.get(name, key).split(".") if section == "actor" else key.split(".")
    return next(FIXED[prefix] for end in range(len(parts), 0, -1) if (prefix := ".".join(parts[:end])) in FIXED)
