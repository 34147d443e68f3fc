"""What every learner asks of a batch, and what it reports of one before training on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bus.errors import LearnerError
from services.samples import SampleGroup


def check_batch(last_step: int, step: int, batch: Sequence[SampleGroup], micro_batches: Sequence[Sequence[int]]) -> None:
    """Raises LearnerError unless `step` follows `last_step`, micro batches partition the batch, and there is something to train on."""
    if step != last_step + 1:
        raise LearnerError(f"step {step} cannot follow step {last_step}: load the checkpoint of step {step - 1} first")
    if sorted(index for micro_batch in micro_batches for index in micro_batch) != list(range(len(batch))):
        raise LearnerError(
            f"step {step}: the micro batches {[list(micro_batch) for micro_batch in micro_batches]} do not name each of the "
            f"{len(batch)} samples once"
        )
    for group in batch:
        if not group.prompt_tokens:
            raise LearnerError(f"step {step}: sample {group.sample} has an empty prompt, so nothing predicts an answer's first token")
        if not all(math.isfinite(answer.reward) for answer in group.answers):
            rewards = [answer.reward for answer in group.answers]
            raise LearnerError(f"step {step}: sample {group.sample} has rewards {rewards}: all must be finite numbers")
    if not any(group.num_tokens for group in batch):
        raise LearnerError(f"step {step}: none of the {len(batch)} samples has an answer token")


def rollout_metrics(batch: Sequence[SampleGroup]) -> dict[str, float]:
    """Mean and population standard deviation of the answers' rewards, mean number of tokens an answer."""
    rewards = [answer.reward for group in batch for answer in group.answers]
    mean = math.fsum(rewards) / len(rewards)
    return {
        "rollout/mean_reward": mean,
        "rollout/reward_std": math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)),
        "rollout/mean_tokens": sum(group.num_tokens for group in batch) / len(rewards),
    }
