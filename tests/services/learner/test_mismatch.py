"""Which tokens' log-probabilities are compared with which weights."""

from __future__ import annotations

from math import exp
from pathlib import Path

import pytest
import torch

from services.agreement import Publishing
from services.learner.config import LearnerConfig
from services.learner.hf import HfLearner
from services.learner.mismatch import Sampled, tally_mismatch
from services.learner.tally import Tally
from services.samples import Answer, SampleGroup, VersionSpan
from tests.services.learner.factories import make_batch

NAME = "rollout/logprob_diff"


def measured(sampled: Sampled, of_version: list[float] | None, version: int, *, keeps_caches: bool = False) -> dict[str, float]:
    """Of all tokens in one part, where the weights that the step begins with give each token -2."""
    tally, ours = Tally(sum(sampled.lengths)), torch.full_like(sampled.logprobs, -2.0)
    exact = None if of_version is None else torch.tensor(of_version)
    tally_mismatch(tally, sampled, ours, exact, version, keeps_caches=keeps_caches)
    return {name.removeprefix(NAME + "_"): value for name, value in tally.results().items()}


TWO_ANSWERS = Sampled(torch.tensor([-1.0, -1.5, -2.0, -4.0]), torch.tensor([6, 7, 7, 5]), (2, 2))


def test_tokens_of_the_version_that_is_trained_are_told_apart_from_older_ones() -> None:
    found = measured(TWO_ANSWERS, [-9.0, -1.0, -1.9, -9.0], 7)
    assert found["mean"] == pytest.approx((1 + 0.5 + 0 + 2) / 4)
    assert found["max"] == pytest.approx(2)
    assert found["same_version_mean"] == pytest.approx((0.5 + 0.1) / 2)
    assert found["same_version_max"] == pytest.approx(0.5)
    assert found["same_version_tokens"] == 2
    assert found["same_version_kl"] == pytest.approx((exp(0.5) - 1.5 + exp(0.1) - 1.1) / 2)
    assert found["older_version_mean"] == pytest.approx((1 + 2) / 2)
    assert found["older_version_max"] == pytest.approx(2)


def test_tokens_over_what_older_weights_have_cached_are_not_of_one_version() -> None:
    found = measured(TWO_ANSWERS, [-9.0, -1.0, -1.9, -9.0], 7, keeps_caches=True)
    assert found["same_version_tokens"] == 1
    assert found["same_version_mean"] == pytest.approx(0.1)


def test_what_there_are_no_tokens_of_is_not_measured() -> None:
    unknown = Sampled(torch.tensor([-1.0]), torch.tensor([-1]), (1,))
    assert measured(unknown, [-1.0], 0) == {"mean": 1.0, "max": 1.0, "same_version_tokens": 0.0}
    assert set(measured(TWO_ANSWERS, None, 7)) == {"mean", "max", "older_version_mean", "older_version_max"}


def test_parts_of_a_batch_add_up() -> None:
    tally = Tally(4)
    for values, versions in (([-1.0], [1]), ([-1.5, -2.5], [1, 0]), ([-7.0], [0])):
        sampled = Sampled(torch.tensor(values), torch.tensor(versions), (len(values),))
        tally_mismatch(tally, sampled, torch.full((len(values),), -2.0), torch.full((len(values),), -2.0), 1, keeps_caches=False)
    found = tally.results()
    assert found[f"{NAME}_same_version_mean"] == pytest.approx(0.75)
    assert found[f"{NAME}_older_version_mean"] == pytest.approx((0.5 + 5) / 2)
    assert found[f"{NAME}_older_version_max"] == 5


@pytest.mark.parametrize(
    ("old_logprobs", "steps"),
    [("bypass", [1, 3]), ("recompute", [1, 2, 3, 4])],
)
def test_the_weights_of_a_version_are_at_hand_in_its_first_step_or_where_they_are_kept(
    tiny_model: Path, old_logprobs: str, steps: list[int]
) -> None:
    config = LearnerConfig.model_validate({"model": str(tiny_model), "lr": 1e-2, "num_threads": 1, "old_logprobs": old_logprobs})
    learner = HfLearner(config, 10, publishing=Publishing(steps_per_version=2))
    found = []
    for step in range(1, 5):
        if step % 2 == 1:
            learner.begin_cycle()
        batch = [of_version(group, (step - 1) // 2) for group in make_batch(step, num_groups=2)]
        metrics = learner.train(step, batch, [[0], [1]]).metrics
        found += [step] if metrics.get(f"{NAME}_same_version_tokens") == sum(group.num_tokens for group in batch) else []
        assert f"{NAME}_older_version_mean" not in metrics
    assert found == steps


def of_version(group: SampleGroup, version: int) -> SampleGroup:
    answers = (
        Answer(answer.tokens, answer.logprobs, (VersionSpan(version, len(answer.tokens)),), answer.finish, answer.reward)
        for answer in group.answers
    )
    return SampleGroup(group.sample, group.prompt_tokens, tuple(answers))
