"""From log-probabilities and advantages to the policy's loss, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this: beyond it float32 overflows, and the infinity times a zero gradient would be NaN."""


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Per token, shape [tokens]: the loss, the ratio (detached), and where the clip replaced the ratio by its lower or upper bound."""

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped_low: torch.Tensor
    clipped_high: torch.Tensor


def clipped_surrogate(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> Surrogate:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) with ratio = exp(logprobs - old_logprobs).

    All tensors have shape [tokens]; the gradient flows through `logprobs` only. PPO (Schulman et al. 2017, arXiv 1707.06347), equation 7;
    separate bounds as in DAPO (Yu et al. 2025, arXiv 2503.14476), equation 8.
    """
    ratio = _ratio(logprobs, old_logprobs)
    free = ratio * advantages
    bound = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    clipped = (bound < free).detach()
    return Surrogate(-torch.minimum(free, bound), ratio.detach(), clipped & (ratio < 1), clipped & (ratio > 1))


def unclipped_surrogate(logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor) -> Surrogate:
    """-ratio * A with ratio = exp(logprobs - old_logprobs): the importance-weighted policy gradient, without a trust region.

    PPO (arXiv 1707.06347), equation 6 (conservative policy iteration). On stale samples the ratio, and with it the step, has no bound.
    """
    ratio = _ratio(logprobs, old_logprobs)
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return Surrogate(-ratio * advantages, ratio.detach(), never, never)


def _ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs - old_logprobs.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
