"""The arithmetic of a step: from rewards to advantages, from log-probabilities to the loss.

    rewards of a group ──group_advantages──▶ A ──┐
    log π_θ, log π_old ──clipped_surrogate──▶ per-token loss ──× truncated_importance_weight──▶ sum / tokens of the batch

Sources: PPO (Schulman et al. 2017, arXiv 1707.06347) for the clipped ratio; GRPO (DeepSeekMath, Shao et al. 2024, arXiv 2402.03300) for
the advantage; DAPO (Yu et al. 2025, arXiv 2503.14476) for separate clip bounds and the token mean; IMPALA (Espeholt et al. 2018,
arXiv 1802.01561) for truncating an importance weight, and TIS (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy
RL Training") for its use between trainer and rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

ADVANTAGE_EPSILON = 1e-6
LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this: beyond it float32 overflows, and the infinity times a zero gradient would be NaN."""


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-6), one advantage an answer, std with n - 1 (GRPO, outcome supervision).

    If all rewards are equal, and so in a group of one, there is nothing to compare: every advantage is exactly 0. Such answers still count
    in the token mean. Raises ValueError for a reward that is not finite.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards {list(rewards)} are not all finite")
    if not rewards or min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - mean) / (std + ADVANTAGE_EPSILON) for reward in rewards]


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Per token, shape [tokens]: the loss, the ratio (detached), and whether the clip replaced the ratio."""

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor


def clipped_surrogate(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> Surrogate:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) with ratio = exp(logprobs - old_logprobs).

    All tensors have shape [tokens]; the gradient flows through `logprobs` only. PPO, equation 7; bounds decoupled as in DAPO, equation 8.
    """
    log_ratio = (logprobs - old_logprobs.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    free = ratio * advantages
    bound = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return Surrogate(loss=-torch.minimum(free, bound), ratio=ratio.detach(), clipped=(bound < free).detach())


def truncated_importance_weight(old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, cap: float) -> torch.Tensor:
    """min(π_old / π_rollout, cap) per token, shape [tokens], without gradient: the loss of a token is multiplied by it.

    π_old is the trainer's probability, π_rollout the one the token was sampled with; they differ because weights are stale and because
    engine and trainer do not compute alike. The cap bounds the variance at the price of a bias.
    """
    log_weight = (old_logprobs - rollout_logprobs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_weight.exp().clamp(max=cap)
