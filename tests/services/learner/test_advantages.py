"""Advantages against slow ones, and what they are where there is nothing to compare."""

from __future__ import annotations

import math
import random

import pytest

from services.learner.advantages import estimate_advantages
from services.learner.config import Estimator
from tests.services.learner.slow import slow_advantages

ESTIMATORS: tuple[Estimator, ...] = ("grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")


def random_batch(seed: int) -> tuple[list[list[float]], list[list[int]]]:
    source = random.Random(seed)
    rewards = [[source.choice([0.0, 0.25, 0.7, 1.0]) for _ in range(6)] for _ in range(5)]
    return rewards, [[source.randint(0, 9) for _ in group] for group in rewards]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("by_std", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_advantages_equal_the_slow_ones(estimator: Estimator, by_std: bool, seed: int) -> None:
    rewards, num_tokens = random_batch(seed)
    ours = estimate_advantages(estimator, rewards, num_tokens, by_std=by_std)
    theirs = slow_advantages(estimator, rewards, num_tokens, by_std)
    assert [value for group in ours for value in group] == pytest.approx([value for group in theirs for value in group], abs=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_rewards_give_exactly_no_advantage_although_their_mean_is_rounded(estimator: Estimator) -> None:
    rewards = [[0.1] * 3, [0.1] * 3]
    assert estimate_advantages(estimator, rewards, [[1, 2, 3]] * 2) == [[0.0] * 3] * 2
    assert estimate_advantages(estimator, [[0.7]], [[4]]) == [[0.0]]
    assert estimate_advantages(estimator, [[]], [[]]) == [[]]


def test_without_the_deviation_an_easy_prompt_does_not_weigh_more_than_a_hard_one() -> None:
    nearly_all_right, half_right = [1.0] * 7 + [0.0], [1.0, 0.0] * 4
    divided = estimate_advantages("grpo", [nearly_all_right, half_right], [[1] * 8] * 2)
    plain = estimate_advantages("grpo", [nearly_all_right, half_right], [[1] * 8] * 2, by_std=False)
    assert abs(divided[0][7]) > 2.4
    assert plain[0][7] == -0.875
    assert plain[1] == [0.5, -0.5] * 4


def test_only_answers_with_tokens_decide_how_the_batch_is_normalised() -> None:
    whole = estimate_advantages("reinforce_plus_plus", [[0.0, 1.0]], [[3, 5]])
    with_an_empty_one = estimate_advantages("reinforce_plus_plus", [[0.0, 1.0, 9.0]], [[3, 5, 0]])
    assert with_an_empty_one[0][:2] == whole[0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_reward_that_is_not_finite_is_refused(estimator: Estimator) -> None:
    with pytest.raises(ValueError, match="nan"):
        estimate_advantages(estimator, [[0.0, 1.0], [0.0, math.nan]], [[1, 1]] * 2)
