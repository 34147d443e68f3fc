"""The terms of the loss and their gradients against slow ones."""

from __future__ import annotations

import math
import random

import pytest
import torch

from services.learner.aggregation import token_shares
from services.learner.config import KlEstimate, LearnerConfig, LossAggregation
from services.learner.importance import ImportanceWeights, importance_weights
from services.learner.kl import kl_divergence
from services.learner.overlong import soft_overlong_punishment
from services.learner.surrogate import clipped_surrogate, unclipped_surrogate
from tests.services.learner.slow import slow_aggregate, slow_kl, slow_overlong, slow_policy_loss, slow_weights

STEP = 1e-6
"""Of the difference quotients that gradients are compared with."""


def random_tokens(seed: int, count: int = 400) -> tuple[list[float], list[float], list[float]]:
    """Log-probabilities, older ones, advantages."""
    source = random.Random(seed)
    old = [source.uniform(-6, 0) for _ in range(count)]
    return [value + source.gauss(0, 0.5) for value in old], old, [source.gauss(0, 1) for _ in range(count)]


def tensor(values: list[float], *, gradient: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=gradient)


def gradient_of(loss: torch.Tensor, values: torch.Tensor) -> list[float]:
    torch.autograd.backward(loss.sum())
    assert values.grad is not None
    return [float(value) for value in values.grad]


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.05, 3.0)])
def test_the_clipped_loss_and_its_gradient_equal_the_slow_ones(low: float, high: float) -> None:
    logprobs, old, advantages = random_tokens(3)
    ours, old_tensor = tensor(logprobs, gradient=True), tensor(old, gradient=True)
    surrogate = clipped_surrogate(ours, old_tensor, tensor(advantages), low, high)
    slow = [slow_policy_loss(math.exp(a) / math.exp(b), c, low, high) for a, b, c in zip(logprobs, old, advantages, strict=True)]
    assert surrogate.loss.tolist() == pytest.approx([loss for loss, _ in slow], abs=1e-12)
    assert surrogate.clipped_low.tolist() == [name == "low" for _, name in slow]
    assert surrogate.clipped_high.tolist() == [name == "high" for _, name in slow]
    assert {name for _, name in slow} >= {"", "low"}
    # Where the clip decides, nothing depends on the log-probability; elsewhere d(ratio) = ratio.
    assert gradient_of(surrogate.loss, ours) == pytest.approx([0.0 if name else loss for loss, name in slow], abs=1e-12)
    assert old_tensor.grad is None


def test_the_clip_bounds_only_what_pays() -> None:
    logprobs = torch.log(tensor([2.0, 2.0, 0.5, 0.5]))
    surrogate = clipped_surrogate(logprobs, tensor([0.0] * 4), tensor([1.0, -1.0, 1.0, -1.0]), 0.2, 0.3)
    assert surrogate.loss.tolist() == pytest.approx([-1.3, 2.0, -0.5, 0.8])
    assert surrogate.clipped_high.tolist() == [True, False, False, False]
    assert surrogate.clipped_low.tolist() == [False, False, False, True]


def test_the_unclipped_loss_and_its_gradient_equal_the_slow_ones() -> None:
    logprobs, old, advantages = random_tokens(5)
    ours = tensor(logprobs, gradient=True)
    surrogate = unclipped_surrogate(ours, tensor(old), tensor(advantages))
    slow = [-math.exp(a) / math.exp(b) * c for a, b, c in zip(logprobs, old, advantages, strict=True)]
    assert surrogate.loss.tolist() == pytest.approx(slow, abs=1e-12)
    assert not (surrogate.clipped_low | surrogate.clipped_high).any()
    assert gradient_of(surrogate.loss, ours) == pytest.approx(slow, abs=1e-12)


def test_an_enormous_ratio_gives_finite_loss_weight_and_gradient() -> None:
    logprobs, old = torch.tensor([0.0, 0.0], requires_grad=True), torch.tensor([-500.0, -500.0])
    loss = clipped_surrogate(logprobs, old, torch.tensor([1.0, -1.0]), 0.2, 0.2).loss
    loss = loss + unclipped_surrogate(logprobs, old, torch.tensor([1.0, -1.0])).loss + kl_divergence("k3", logprobs, old)
    assert torch.isfinite(loss).all()
    assert all(math.isfinite(value) for value in gradient_of(loss, logprobs))
    assert weights_of(LearnerConfig(model="m", old_logprobs="recompute"), [0.0, 0.0], [-500.0, -500.0], [2]).weight.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_divergence_and_its_gradient_equal_the_slow_ones(kind: KlEstimate) -> None:
    logprobs, reference, _ = random_tokens(6)
    ours, reference_tensor = tensor(logprobs, gradient=True), tensor(reference, gradient=True)
    divergence = kl_divergence(kind, ours, reference_tensor)
    slow = [slow_kl(kind, math.exp(a), math.exp(b)) for a, b in zip(logprobs, reference, strict=True)]
    slopes = [
        (slow_kl(kind, math.exp(a + STEP), math.exp(b)) - slow_kl(kind, math.exp(a - STEP), math.exp(b))) / (2 * STEP)
        for a, b in zip(logprobs, reference, strict=True)
    ]
    assert divergence.tolist() == pytest.approx(slow, abs=1e-9)
    assert gradient_of(divergence, ours) == pytest.approx(slopes, abs=1e-6)
    assert reference_tensor.grad is None


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_both_estimates_have_the_divergence_as_their_mean_over_what_the_policy_samples(kind: KlEstimate) -> None:
    ours, theirs = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    exact = math.fsum(p * math.log(p / q) for p, q in zip(ours, theirs, strict=True))
    estimates = kl_divergence(kind, tensor(ours).log(), tensor(theirs).log())
    assert float((tensor(ours) * estimates).sum()) == pytest.approx(exact)


def weights_of(config: LearnerConfig, old: list[float], rollout: list[float], lengths: list[int]) -> ImportanceWeights:
    weights = importance_weights(config, tensor(old, gradient=True), tensor(rollout), lengths)
    assert weights is not None
    assert not weights.weight.requires_grad
    return weights


@pytest.mark.parametrize("limit", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("cap", "low"), [(2.0, None), (1.2, 0.8), (5.0, 0.0)])
def test_importance_weights_equal_the_slow_ones(level: str, limit: str, cap: float, low: float | None) -> None:
    old, rollout, _ = random_tokens(4, 60)
    lengths = [1, 2, 7, 20, 30]
    config = LearnerConfig.model_validate(
        {
            "model": "m",
            "old_logprobs": "recompute",
            "rollout_is": level,
            "rollout_is_limit": limit,
            "rollout_is_threshold": cap,
            "rollout_is_threshold_low": low,
        }
    )
    weights = weights_of(config, old, rollout, lengths)
    lowest = 1 / cap if low is None else low
    ours, theirs = [math.exp(value) for value in old], [math.exp(value) for value in rollout]
    slow = slow_weights(ours, theirs, lengths, level, limit, cap, lowest)
    free = slow_weights(ours, theirs, lengths, level, "truncate", math.inf, 0.0)
    assert weights.weight.tolist() == pytest.approx(slow, rel=1e-9)
    assert weights.ratio.tolist() == pytest.approx(free, rel=1e-9)
    assert weights.limited.tolist() == [limited != weight for limited, weight in zip(slow, free, strict=True)]


@pytest.mark.parametrize("settings", [{"old_logprobs": "bypass"}, {"old_logprobs": "recompute", "rollout_is": "none"}])
def test_there_are_no_weights_where_none_are_asked_for(settings: dict[str, object]) -> None:
    config = LearnerConfig.model_validate({"model": "m", **settings})
    assert importance_weights(config, tensor([0.0]), tensor([-1.0]), [1]) is None


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_shares_add_the_tokens_up_as_the_slow_aggregation_does(mode: LossAggregation) -> None:
    source = random.Random(8)
    losses = [[[source.gauss(0, 1) for _ in range(count)] for count in counts] for counts in ([3, 0, 6], [1, 1, 2], [0, 9, 4])]
    num_tokens = [[len(answer) for answer in group] for group in losses]
    shares = token_shares(mode, num_tokens, 17.0)
    total = math.fsum(
        loss * share
        for group, of_group in zip(losses, shares, strict=True)
        for answer, share in zip(group, of_group, strict=True)
        for loss in answer
    )
    assert total == pytest.approx(slow_aggregate(mode, [answer for group in losses for answer in group], 17.0), abs=1e-12)


def test_a_sum_without_a_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="loss_scale_factor"):
        token_shares("seq-mean-token-sum-norm", [[1]], None)


@pytest.mark.parametrize(("longest", "buffer", "factor"), [(20, 4, 1.0), (20, 20, 0.5), (7, 1, 2.0)])
def test_the_overlong_punishment_equals_the_slow_one(longest: int, buffer: int, factor: float) -> None:
    for length in range(longest + 3):
        assert soft_overlong_punishment(length, longest, buffer, factor) == pytest.approx(slow_overlong(length, longest, buffer, factor))
    assert soft_overlong_punishment(longest - buffer, longest, buffer, factor) == 0.0
    assert soft_overlong_punishment(longest, longest, buffer, factor) == -factor
