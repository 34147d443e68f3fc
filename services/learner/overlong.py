"""Answers that come near the length limit lose reward, so that the model learns to end before it is cut off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from services.learner.config import LearnerConfig
from services.samples import SampleGroup


def soft_overlong_punishment(num_tokens: int, max_response_length: int, buffer_len: int, penalty_factor: float) -> float:
    """What is added to the reward of an answer of `num_tokens` tokens; at most 0.

        |y| <= L_max - L_buffer           0
        L_max - L_buffer < |y| <= L_max   factor * ((L_max - L_buffer) - |y|) / L_buffer
        |y| > L_max                       -factor

    DAPO (Yu et al. 2025, arXiv 2503.14476), equation 13; the factor is 1 there.
    """
    over = num_tokens - (max_response_length - buffer_len)
    return -penalty_factor * min(max(over, 0), buffer_len) / buffer_len if over > 0 else 0.0


def shaped_rewards(config: LearnerConfig, batch: Sequence[SampleGroup]) -> list[list[float]]:
    """The rewards of a batch, one list a group, with the punishment that is configured. Needs `max_response_length` where one is."""
    buffer_len, longest = config.overlong_buffer_len, config.max_response_length
    if buffer_len is None:
        return [[answer.reward for answer in group.answers] for group in batch]
    assert longest is not None
    return [
        [
            answer.reward + soft_overlong_punishment(len(answer.tokens), longest, buffer_len, config.overlong_penalty_factor)
            for answer in group.answers
        ]
        for group in batch
    ]


def overlong_metrics(config: LearnerConfig, batch: Sequence[SampleGroup]) -> dict[str, float]:
    """Share of the answers that were punished, and the mean over all answers of what they lost; empty when nothing is configured."""
    if config.overlong_buffer_len is None:
        return {}
    before = [answer.reward for group in batch for answer in group.answers]
    lost = [reward - shaped for reward, shaped in zip(before, chain.from_iterable(shaped_rewards(config, batch)), strict=True)]
    return {
        "rollout/overlong_fraction": sum(value > 0 for value in lost) / len(lost),
        "rollout/overlong_penalty": math.fsum(lost) / len(lost),
    }
