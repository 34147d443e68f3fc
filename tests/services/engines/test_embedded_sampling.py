"""Tokens are drawn from the distribution that their log-probabilities tell."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from services.engines.embedded_sampling import draw, sampling_rows
from services.engines.protocol import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
CPU = torch.device("cpu")


def draw_many(sampling: Sampling, count: int = 20_000) -> tuple[list[int], list[float]]:
    """One row for each of `count` evenly spread uniforms."""
    rows = sampling_rows([sampling] * count, len(LOGITS), CPU)
    return draw(LOGITS.expand(count, -1), rows, [(number + 0.5) / count for number in range(count)])


def by_hand(sampling: Sampling) -> dict[int, float]:
    """The distribution that the settings mean, in plain arithmetic (the logits fall, so rank and token are the same)."""
    weights = [math.exp(logit / sampling.temperature) for logit in LOGITS.tolist()]
    weights = weights[: sampling.top_k or None]
    kept: list[float] = []
    for weight in weights:
        if sum(kept) >= sampling.top_p * sum(weights):
            break
        kept.append(weight)
    return {token: weight / sum(kept) for token, weight in enumerate(kept)}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.3),
        Sampling(temperature=2.5),
        Sampling(top_k=2),
        Sampling(top_k=50),
        Sampling(top_p=0.6),
        Sampling(top_p=0.01),
        Sampling(temperature=1.5, top_k=4, top_p=0.8),
    ],
)
def test_frequencies_and_logprobs_are_those_of_the_restricted_renormalised_distribution(sampling: Sampling) -> None:
    expected = by_hand(sampling)
    tokens, logprobs = draw_many(sampling)
    counts = Counter(tokens)
    assert set(counts) == set(expected)
    for token, probability in expected.items():
        assert counts[token] / len(tokens) == pytest.approx(probability, abs=2e-4)
    for token, logprob in zip(tokens, logprobs, strict=True):
        assert logprob == pytest.approx(math.log(expected[token]), abs=1e-5)


def test_the_order_of_the_vocabulary_does_not_matter_to_truncation() -> None:
    shuffled = LOGITS[[3, 0, 4, 2, 1]]
    sampling = Sampling(top_k=3, top_p=0.9)
    tokens, _ = draw(shuffled.expand(100, -1), sampling_rows([sampling] * 100, 5, CPU), [(n + 0.5) / 100 for n in range(100)])
    assert {float(shuffled[token]) for token in tokens} == {2.0, 1.0, 0.5}


def test_temperature_zero_takes_the_most_likely_token_with_logprob_zero() -> None:
    tokens, logprobs = draw_many(Sampling(temperature=0), count=50)
    assert set(tokens) == {0}
    assert set(logprobs) == {0.0}


def test_each_row_has_its_own_settings() -> None:
    samplings = [Sampling(temperature=0), Sampling(), Sampling(top_p=0.5), Sampling(temperature=0.1)]
    tokens, logprobs = draw(LOGITS.expand(4, -1), sampling_rows(samplings, 5, CPU), [0.999] * 4)
    assert tokens == [0, 4, 0, 0]
    assert logprobs[1] == pytest.approx(math.log(by_hand(Sampling())[4]), abs=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_possible_tokens_only(uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, -200.0, 1.0, -math.inf]])
    tokens, logprobs = draw(logits, sampling_rows([Sampling()], 5, CPU), [uniform])
    assert tokens[0] in (1, 3)
    assert math.isfinite(logprobs[0])


def test_rare_tokens_of_a_large_vocabulary_are_drawn() -> None:
    rare = torch.full((1, 150_000), -14.0)
    rare[0, 0] = 10.0
    rare[0, -1] = -5.0
    total = torch.exp(rare.double()).sum()
    before_last = float(1 - torch.exp(rare[0, -1].double()) / total)
    tokens, _ = draw(rare, sampling_rows([Sampling()], 150_000, CPU), [(before_last + 1) / 2])
    assert tokens == [149_999]


def test_logits_that_are_not_finite_give_a_logprob_that_is_not() -> None:
    logits = torch.stack([LOGITS, torch.full_like(LOGITS, float("nan"))])
    tokens, logprobs = draw(logits, sampling_rows([Sampling()] * 2, 5, CPU), [0.5, 0.5])
    assert math.isfinite(logprobs[0])
    assert math.isnan(logprobs[1])
    assert all(0 <= token < 5 for token in tokens)
