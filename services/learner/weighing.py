"""What a batch's answers count for, worked out for the whole batch before it is split, and what is reported of its training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bus.errors import ConfigError, LearnerError
from services.learner.advantages import estimate_advantages
from services.learner.aggregation import token_shares
from services.learner.batch import rollout_metrics
from services.learner.config import LearnerConfig
from services.learner.overlong import overlong_metrics, shaped_rewards
from services.learner.passes import ScoredAnswer
from services.learner.protocol import StepReport
from services.samples import SampleGroup


def weigh(config: LearnerConfig, batch: Sequence[SampleGroup]) -> tuple[list[list[float]], list[list[float]]]:
    """Each answer's advantage, and the share that each of its tokens has in the loss."""
    num_tokens = [[len(answer.tokens) for answer in group.answers] for group in batch]
    rewards = shaped_rewards(config, batch)
    advantages = estimate_advantages(config.adv_estimator, rewards, num_tokens, by_std=config.norm_adv_by_std_in_grpo)
    return advantages, token_shares(config.loss_agg_mode, num_tokens, config.loss_norm)


def check_lengths(config: LearnerConfig) -> None:
    """Raises ConfigError when a setting needs the longest answer allowed and that is not known."""
    needs = {"overlong_buffer_len": config.overlong_buffer_len is not None}
    needs["loss_agg_mode seq-mean-token-sum-norm"] = config.loss_agg_mode == "seq-mean-token-sum-norm" and config.loss_norm is None
    for name, needed in needs.items():
        if needed and config.max_response_length is None:
            raise ConfigError(f"actor.{name} needs the longest answer allowed: set rollout.max_response_length")


def check_vocabulary(step: int, answers: Sequence[ScoredAnswer], size: int) -> None:
    """Raises LearnerError for a token that a model with `size` tokens does not have."""
    highest = max(max(*answer.prompt, *answer.tokens) for answer in answers)
    if highest >= size:
        raise LearnerError(f"step {step}: token {highest} is not in the vocabulary of {size}: the tokenizer is another model's")


def step_report(config: LearnerConfig, batch: Sequence[SampleGroup], updates: Sequence[StepReport]) -> StepReport:
    """The report of a step from those of its updates: one an epoch, or of the first and the last one only."""
    # Differences to the rollout are those of the weights that the step began with, the rest is what the last update saw.
    rollout = {name: value for name, value in updates[0].metrics.items() if name.startswith("rollout/")}
    seconds = {phase: math.fsum(update.seconds[phase] for update in updates) for phase in updates[0].seconds}
    measured = {**updates[-1].metrics, **rollout, **rollout_metrics(batch), **overlong_metrics(config, batch)}
    return StepReport(metrics=measured, seconds=seconds)
