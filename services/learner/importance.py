"""Importance weights between π_old, the trainer's weights at the start of the cycle, and what the answers were sampled with.

They differ because samples are stale and because engine and trainer do not compute alike. The weight corrects the expectation; its limit
bounds the variance, at the price of a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.learner.config import LearnerConfig
from services.learner.surrogate import LOG_RATIO_LIMIT


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Per token, shape [tokens], without gradient: the weight, the ratio before its limit, and whether the limit changed it."""

    weight: torch.Tensor
    ratio: torch.Tensor
    limited: torch.Tensor


def importance_weights(
    config: LearnerConfig, old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, lengths: Sequence[int]
) -> ImportanceWeights | None:
    """The weights that `rollout_is` and its limits ask for; `lengths` are those of the answers, which the tokens belong to in order.

        token      w = π_old(token) / π_rollout(token)
        sequence   w = product of these over the answer, the same for each of its tokens
        truncate   min(w, threshold)
        mask       w if threshold_low <= w <= threshold else 0

    None without weights, and with `bypass`, where π_old is π_rollout. Truncation: IMPALA (Espeholt et al. 2018, arXiv 1802.01561), between
    trainer and rollout as TIS (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"). Masking: IcePop
    (token) and masked importance sampling (sequence), both 2025.
    """
    if config.rollout_is == "none" or config.old_logprobs == "bypass":
        return None
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    if config.rollout_is == "sequence":
        log_ratio = torch.cat([part.sum().expand(len(part)) for part in torch.split(log_ratio, list(lengths))])
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    if config.rollout_is_limit == "truncate":
        limited = ratio > config.rollout_is_threshold
        return ImportanceWeights(ratio.clamp(max=config.rollout_is_threshold), ratio, limited)
    limited = (ratio < config.lowest_weight) | (ratio > config.rollout_is_threshold)
    return ImportanceWeights(ratio.masked_fill(limited, 0.0), ratio, limited)
