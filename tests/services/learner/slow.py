"""Every formula once more: slowly, in float64, with loops, from its source and not from our code."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_of(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def deviation_of(values: Sequence[float]) -> float:
    """With n - 1."""
    mean, squares = mean_of(values), 0.0
    for value in values:
        squares += (value - mean) * (value - mean)
    return math.sqrt(squares / (len(values) - 1))


def slow_grpo(rewards: Sequence[float], by_std: bool = True) -> list[float]:
    if len(set(rewards)) == 1:
        return [0.0 for _ in rewards]
    if not by_std:
        return [reward - mean_of(rewards) for reward in rewards]
    return [(reward - mean_of(rewards)) / (deviation_of(rewards) + 0.000001) for reward in rewards]


def slow_rloo(rewards: Sequence[float]) -> list[float]:
    advantages = []
    for index, reward in enumerate(rewards):
        others = [other for place, other in enumerate(rewards) if place != index]
        advantages.append(reward - mean_of(others))
    return advantages


def slow_reinforce_plus_plus(rewards: Sequence[Sequence[float]], num_tokens: Sequence[Sequence[int]], baseline: bool) -> list[list[float]]:
    values = [[reward - mean_of(group) if baseline else reward for reward in group] for group in rewards]
    tokens = []
    for group, counts in zip(values, num_tokens, strict=True):
        for value, count in zip(group, counts, strict=True):
            for _ in range(count):
                tokens.append(value)  # noqa: PERF401
    return [[(value - mean_of(tokens)) / (deviation_of(tokens) + 0.000001) for value in group] for group in values]


def slow_advantages(
    estimator: str, rewards: Sequence[Sequence[float]], num_tokens: Sequence[Sequence[int]], by_std: bool = True
) -> list[list[float]]:
    if estimator == "grpo":
        return [slow_grpo(group, by_std) for group in rewards]
    if estimator == "rloo":
        return [slow_rloo(group) for group in rewards]
    return slow_reinforce_plus_plus(rewards, num_tokens, estimator == "reinforce_plus_plus_baseline")


def slow_overlong(length: int, longest: int, buffer: int, factor: float) -> float:
    if length <= longest - buffer:
        return 0.0
    if length <= longest:
        return factor * ((longest - buffer) - length) / buffer
    return -factor


def slow_policy_loss(ratio: float, advantage: float, low: float, high: float) -> tuple[float, str]:
    """The loss of a token, and which bound of the clip decided, if any."""
    bound, name = ratio, ""
    if ratio < 1 - low:
        bound, name = 1 - low, "low"
    if ratio > 1 + high:
        bound, name = 1 + high, "high"
    if bound * advantage < ratio * advantage:
        return -bound * advantage, name
    return -ratio * advantage, ""


def slow_kl(kind: str, probability: float, reference: float) -> float:
    if kind == "k1":
        return math.log(probability / reference)
    return reference / probability - 1 - math.log(reference / probability)


def slow_weights(
    old: Sequence[float], rollout: Sequence[float], lengths: Sequence[int], level: str, limit: str, cap: float, low: float
) -> list[float]:
    """From probabilities, not their logarithms."""
    weights, start = [], 0
    for length in lengths:
        product = 1.0
        for place in range(start, start + length):
            product *= old[place] / rollout[place]
        for place in range(start, start + length):
            weight = old[place] / rollout[place] if level == "token" else product
            if limit == "truncate":
                weights.append(weight if weight < cap else cap)
            else:
                weights.append(weight if low <= weight <= cap else 0.0)
        start += length
    return weights


def slow_aggregate(mode: str, losses: Sequence[Sequence[float]], norm: float) -> float:
    """`losses` of each answer's tokens."""
    answers = [answer for answer in losses if len(answer) > 0]
    if mode == "token-mean":
        return mean_of([loss for answer in answers for loss in answer])
    if mode == "seq-mean-token-mean":
        return mean_of([mean_of(answer) for answer in answers])
    total = 0.0
    for answer in answers:
        for loss in answer:
            total += loss / norm
    return total / len(answers)
