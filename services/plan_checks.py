"""Whether the parts of a configuration fit together: what no single setting is wrong about, and no run could do."""

from __future__ import annotations

import math

from bus.errors import ConfigError
from bus.events import RunPlanned
from bus.settings import can_keep_answers, keeps_version_lag
from services.config import BUILTIN, SCRIPTED, AsyncTrainingConfig, RolloutConfig, RunConfig
from services.engine_defaults import check_heads
from services.monitor.trackers import check_trackers


def check_sections(config: RunConfig) -> None:
    """Raises ConfigError for sections that do not fit together."""
    replicas, timing = config.replicas, config.async_training
    if replicas.standalone + replicas.hybrid == 0:
        raise ConfigError("replicas.standalone is 0 and replicas.hybrid is 0: nobody could generate; set one of them to at least 1")
    endless = timing.num_prompts is None and not config.data.train_files
    if endless and (timing.total_epochs or 1) > 1:
        raise ConfigError(
            f"async_training.total_epochs is {timing.total_epochs} and async_training.num_prompts is not set: "
            "say how many prompts one epoch has"
        )
    if endless and timing.total_steps is None:
        raise ConfigError("neither async_training.total_steps nor async_training.num_prompts is set: the run would have no end")
    check_version_lag(timing)
    check_update_mode(config.rollout)
    if config.model.path == SCRIPTED and config.rollout.engine != SCRIPTED:
        raise ConfigError(
            f"model.path is {SCRIPTED} and rollout.engine is {config.rollout.engine}: without a model the engine must be scripted, too"
        )
    if config.rollout.engine == "vllm" and config.model.path == BUILTIN and config.actor.device == "cpu":
        check_heads(config.model.shape.hidden_size, config.model.shape.num_heads)
    if config.model.path == SCRIPTED and config.actor.ranks > 1:
        raise ConfigError(f"actor.ranks is {config.actor.ranks} and model.path is {SCRIPTED}: there is no model to share out")
    scripted = config.scripted
    if scripted.shortest_answer > scripted.longest_answer:
        raise ConfigError(
            f"scripted.shortest_answer is {scripted.shortest_answer}, which is over scripted.longest_answer, {scripted.longest_answer}"
        )
    check_trackers(config.monitor)


def check_version_lag(timing: AsyncTrainingConfig) -> None:
    """Raises ConfigError for a limit that could not be kept by waiting."""
    lag, threshold = timing.max_version_lag, timing.staleness_threshold
    if lag is not None and not keeps_version_lag(lag, timing.on_version_lag, threshold):
        raise ConfigError(
            f"async_training.max_version_lag is {lag} and staleness_threshold is {threshold}: more samples may be outstanding than "
            f"{lag + 1} cycles can train, so waiting would not keep the limit; set max_version_lag to {math.ceil(threshold)}, "
            f"staleness_threshold to {lag}, or on_version_lag to drop"
        )


def check_update_mode(rollout: RolloutConfig) -> None:
    """Raises ConfigError for answers that are to go on with other weights, and never to hold tokens of several."""
    if not can_keep_answers(rollout.weight_update_mode, rollout.partial_rollout):
        raise ConfigError(
            "rollout.weight_update_mode is keep and rollout.partial_rollout is false: answers would go on with other weights, "
            "and are to start over rather than hold tokens of several versions; set weight_update_mode to abort, or partial_rollout to true"
        )


def check_evaluation(plan: RunPlanned, temperature: float) -> None:
    """Raises ConfigError for evaluations of nothing, or of the same answer several times."""
    if (plan.eval_every_versions or plan.eval_before_train) and plan.num_validation == 0:
        what = f"every_versions is {plan.eval_every_versions}" if plan.eval_every_versions else "before_train is true"
        raise ConfigError(f"evaluation.{what} and there are no validation prompts: set data.val_files, or data.val_prompts over 0")
    if plan.eval_n > 1 and temperature == 0:
        raise ConfigError(
            f"evaluation.n is {plan.eval_n} and evaluation.temperature 0: all answers would be the same; "
            "set evaluation.n to 1, or a temperature over 0"
        )
