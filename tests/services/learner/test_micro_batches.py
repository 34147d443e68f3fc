"""The micro-batch rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.micro_batches import plan_micro_batches


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(1, 800))
def test_every_sample_is_in_one_micro_batch_and_none_is_over_the_budget_unless_alone(num_tokens: list[int], budget: int) -> None:
    plan = plan_micro_batches(num_tokens, budget)
    assert sorted(index for micro_batch in plan for index in micro_batch) == list(range(len(num_tokens)))
    assert all(len(micro_batch) == 1 or sum(num_tokens[index] for index in micro_batch) <= budget for micro_batch in plan)


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(1, 800))
def test_lengths_never_rise_from_one_to_the_next_and_ties_keep_their_order(num_tokens: list[int], budget: int) -> None:
    order = [index for micro_batch in plan_micro_batches(num_tokens, budget) for index in micro_batch]
    assert order == sorted(order, key=lambda index: (-num_tokens[index], index))


def test_an_example_worked_by_hand() -> None:
    assert plan_micro_batches([5, 20, 9, 5, 1], budget=14) == [[1], [2, 0], [3, 4]]


def test_no_samples_make_no_micro_batches() -> None:
    assert plan_micro_batches([], budget=10) == []


def test_a_budget_below_one_and_a_negative_length_are_refused_with_their_values() -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        plan_micro_batches([1], budget=0)
    with pytest.raises(ValueError, match="-3"):
        plan_micro_batches([1, -3], budget=5)
