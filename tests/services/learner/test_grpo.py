"""Every formula against the same formula written once more: slowly, in float64, one token at a time."""

from __future__ import annotations

import math
import random

import pytest
import torch

from services.learner.grpo import clipped_surrogate, group_advantages, truncated_importance_weight


def slow_advantages(rewards: list[float]) -> list[float]:
    total = 0.0
    for reward in rewards:
        total += reward
    mean = total / len(rewards)
    squares = 0.0
    for reward in rewards:
        squares += (reward - mean) * (reward - mean)
    if squares == 0.0:
        return [0.0 for _ in rewards]
    deviation = (squares / (len(rewards) - 1)) ** 0.5
    return [(reward - mean) / (deviation + 0.000001) for reward in rewards]


def slow_loss_and_slope(logprob: float, old: float, advantage: float, low: float, high: float) -> tuple[float, float, bool]:
    """Loss of a token, its derivative by the log-probability, and whether the clip decided."""
    ratio = math.e ** (logprob - old)
    bound = ratio
    if ratio < 1 - low:
        bound = 1 - low
    if ratio > 1 + high:
        bound = 1 + high
    if bound * advantage < ratio * advantage:
        return -bound * advantage, 0.0, True
    return -ratio * advantage, -ratio * advantage, False


def random_tokens(seed: int, count: int = 400) -> tuple[list[float], list[float], list[float]]:
    source = random.Random(seed)
    old = [source.uniform(-6, 0) for _ in range(count)]
    return [value + source.gauss(0, 0.5) for value in old], old, [source.gauss(0, 1) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_the_slow_ones(seed: int) -> None:
    source = random.Random(seed)
    rewards = [source.choice([0.0, 0.25, 0.7, 1.0]) for _ in range(8)]
    assert group_advantages(rewards) == pytest.approx(slow_advantages(rewards), abs=1e-12)


def test_equal_rewards_give_exactly_no_advantage_although_their_mean_is_rounded() -> None:
    assert group_advantages([0.1] * 3) == [0.0] * 3
    assert group_advantages([0.7]) == [0.0]
    assert group_advantages([]) == []


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        group_advantages([0.0, math.nan])


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.05, 3.0)])
def test_surrogate_and_its_gradient_equal_the_slow_ones(low: float, high: float) -> None:
    logprobs, old, advantages = random_tokens(3)
    ours = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    old_tensor = torch.tensor(old, dtype=torch.float64, requires_grad=True)
    surrogate = clipped_surrogate(ours, old_tensor, torch.tensor(advantages, dtype=torch.float64), low, high)
    torch.autograd.backward(surrogate.loss.sum())
    slow = [slow_loss_and_slope(*values, low, high) for values in zip(logprobs, old, advantages, strict=True)]
    assert surrogate.loss.tolist() == pytest.approx([loss for loss, _, _ in slow], abs=1e-12)
    assert surrogate.clipped.tolist() == [clipped for _, _, clipped in slow]
    assert any(clipped for _, _, clipped in slow)
    assert ours.grad is not None
    assert ours.grad.tolist() == pytest.approx([slope for _, slope, _ in slow], abs=1e-12)
    assert old_tensor.grad is None


def test_the_clip_bounds_only_what_pays() -> None:
    logprobs = torch.log(torch.tensor([2.0, 2.0, 0.5, 0.5], dtype=torch.float64))
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    surrogate = clipped_surrogate(logprobs, torch.zeros(4, dtype=torch.float64), advantages, 0.2, 0.3)
    assert surrogate.loss.tolist() == pytest.approx([-1.3, 2.0, -0.5, 0.8])
    assert surrogate.clipped.tolist() == [True, False, False, True]


def test_importance_weights_equal_the_slow_ones_and_carry_no_gradient() -> None:
    old, rollout, _ = random_tokens(4)
    ours = torch.tensor(old, dtype=torch.float64, requires_grad=True)
    weights = truncated_importance_weight(ours, torch.tensor(rollout, dtype=torch.float64), cap=1.5)
    slow = []
    for mine, theirs in zip(old, rollout, strict=True):
        weight = math.exp(mine) / math.exp(theirs)
        slow.append(weight if weight < 1.5 else 1.5)
    assert weights.tolist() == pytest.approx(slow, abs=1e-12)
    assert max(slow) == 1.5
    assert not weights.requires_grad


def test_an_enormous_ratio_gives_finite_loss_weight_and_gradient() -> None:
    logprobs = torch.tensor([0.0, 0.0], requires_grad=True)
    old = torch.tensor([-500.0, -500.0])
    surrogate = clipped_surrogate(logprobs, old, torch.tensor([1.0, -1.0]), 0.2, 0.2)
    torch.autograd.backward(surrogate.loss.sum())
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
    assert torch.isfinite(surrogate.loss).all()
    assert truncated_importance_weight(logprobs, old, cap=2.0).tolist() == [2.0, 2.0]
