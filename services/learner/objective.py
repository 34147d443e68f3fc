"""The loss of a pass: what the configuration asks for, put together.

advantages, log π, log π_old ──surrogate──▶ × importance weight ──┐
log π, log π_ref ─────────────kl──────────▶ × kl_loss_coef ───────┼──▶ × share of the token ──▶ sum over the tokens of the batch
entropy ──────────────────────────────────▶ × -entropy_coeff ─────┘
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from services.learner.config import LearnerConfig
from services.learner.importance import ImportanceWeights
from services.learner.kl import kl_divergence
from services.learner.passes import Pass
from services.learner.surrogate import Surrogate, clipped_surrogate, unclipped_surrogate
from services.learner.tally import Tally


@dataclass(frozen=True, slots=True)
class Anchors:
    """What a step measures the policy against, the same for all of its epochs; per token of a pass, shape [tokens], without gradient."""

    old_logprobs: torch.Tensor
    weights: ImportanceWeights | None
    reference_logprobs: torch.Tensor | None


def pass_loss(
    config: LearnerConfig, tensors: Pass, logprobs: torch.Tensor, entropy: torch.Tensor, anchors: Anchors, tally: Tally
) -> torch.Tensor:
    """The pass's part of the batch's loss, a scalar, and its measures into `tally`. `logprobs` and `entropy` have shape [tokens]."""
    surrogate = _surrogate(config, logprobs, anchors.old_logprobs, tensors.advantages)
    policy = surrogate.loss if anchors.weights is None else surrogate.loss * anchors.weights.weight
    loss = policy
    if anchors.reference_logprobs is not None:
        divergence = kl_divergence(config.kl_loss_type, logprobs, anchors.reference_logprobs)
        tally.add("actor/kl", divergence.detach())
        loss = loss + config.kl_loss_coef * divergence if config.kl_loss_coef else loss
    loss = loss - config.entropy_coeff * entropy if config.entropy_coeff else loss
    shared = loss * tensors.shares
    tally.add_total("actor/loss", shared.detach())
    tally.add_total("actor/pg_loss", (policy * tensors.shares).detach())
    tally.add("actor/entropy", entropy.detach())
    tally.add("actor/ppo_kl", anchors.old_logprobs - logprobs.detach())
    _tally_limits(surrogate, anchors.weights, tally)
    return shared.sum()


def _surrogate(config: LearnerConfig, logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor) -> Surrogate:
    if config.policy_loss == "unclipped":
        return unclipped_surrogate(logprobs, old_logprobs, advantages)
    return clipped_surrogate(logprobs, old_logprobs, advantages, config.clip_low, config.clip_high)


def _tally_limits(surrogate: Surrogate, weights: ImportanceWeights | None, tally: Tally) -> None:
    tally.add("actor/ratio_mean", surrogate.ratio)
    tally.add("actor/clip_fraction", surrogate.clipped_low | surrogate.clipped_high)
    tally.add("actor/clip_fraction_low", surrogate.clipped_low)
    tally.add("actor/clip_fraction_high", surrogate.clipped_high)
    if weights is not None:
        tally.add("rollout/is_weight_mean", weights.weight)
        tally.add_highest("rollout/is_weight_max", weights.ratio)
        tally.add("rollout/is_weight_limited", weights.limited)
