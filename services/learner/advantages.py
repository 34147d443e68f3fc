"""From the rewards of a batch to one advantage an answer, the same for each of its tokens.

Notation: r_i is the reward of answer i, mean and std are over the answers of its group, std with n - 1.

    grpo                           (r_i - mean) / (std + 1e-6)          DeepSeekMath, Shao et al. 2024, arXiv 2402.03300, section 4.1.2
    grpo, norm_adv_by_std false    r_i - mean                           Dr. GRPO, Liu et al. 2025, arXiv 2503.20783
    rloo                           r_i - mean of the others             Ahmadian et al. 2024, arXiv 2402.14740; Kool et al. 2019
    reinforce_plus_plus            r_i, normalised over the batch       REINFORCE++, Hu et al. 2025, arXiv 2501.03262
    reinforce_plus_plus_baseline   r_i - mean, normalised over the batch                                        (same paper)

Where all rewards that are compared are equal, and so in a group of one, every advantage is exactly 0: there is nothing to learn, and the
rounding of a mean must not be divided by a standard deviation of almost nothing. Such answers still count where the loss is aggregated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.learner.config import Estimator

EPSILON = 1e-6


def estimate_advantages(
    estimator: Estimator, rewards: Sequence[Sequence[float]], num_tokens: Sequence[Sequence[int]], *, by_std: bool = True
) -> list[list[float]]:
    """Advantages of a batch, shaped like `rewards` (one sequence a group). Raises ValueError for a reward that is not finite."""
    for group in rewards:
        if not all(math.isfinite(reward) for reward in group):
            raise ValueError(f"rewards {list(group)} are not all finite")
    match estimator:
        case "grpo":
            return [grpo(group, by_std=by_std) for group in rewards]
        case "rloo":
            return [rloo(group) for group in rewards]
        case "reinforce_plus_plus":
            return normalise_over_tokens(rewards, num_tokens)
        case "reinforce_plus_plus_baseline":
            return normalise_over_tokens([grpo(group, by_std=False) for group in rewards], num_tokens)


def grpo(rewards: Sequence[float], *, by_std: bool = True) -> list[float]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-6), outcome supervision; without the division when not `by_std` (Dr. GRPO)."""
    if _all_equal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - mean) / (std + EPSILON if by_std else 1.0) for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """A_i = r_i - (sum of r_j, j != i) / (n - 1): the baseline of an answer does not contain the answer, so it adds no bias."""
    if _all_equal(rewards):
        return [0.0] * len(rewards)
    total = math.fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]


def normalise_over_tokens(values: Sequence[Sequence[float]], num_tokens: Sequence[Sequence[int]]) -> list[list[float]]:
    """A_i = (v_i - mean) / (std + 1e-6), mean and std (n - 1) over all answer tokens of the batch, each with the value of its answer.

    REINFORCE++ normalises A_t over the tokens of the global batch; here that is the batch of a step. The reward comes at the end and is not
    discounted, so all tokens of an answer have its value. The paper's divergence term is a term of our loss (`use_kl_loss`).
    """
    weighed = [
        (value, count)
        for group, counts in zip(values, num_tokens, strict=True)
        for value, count in zip(group, counts, strict=True)
        if count > 0
    ]
    if _all_equal([value for value, _ in weighed]):
        return [[0.0] * len(group) for group in values]
    tokens = sum(count for _, count in weighed)
    mean = math.fsum(value * count for value, count in weighed) / tokens
    std = math.sqrt(math.fsum(count * (value - mean) ** 2 for value, count in weighed) / (tokens - 1))
    return [[(value - mean) / (std + EPSILON) for value in group] for group in values]


def _all_equal(values: Sequence[float]) -> bool:
    return not values or min(values) == max(values)
