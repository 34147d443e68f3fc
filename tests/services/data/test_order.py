"""The order of prompts: every one once an epoch, another order each epoch, the same everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.data.order import EpochOrder, permutation


@given(size=st.integers(1, 40), seed=st.integers(0, 5), shuffle=st.booleans())
def test_every_epoch_has_every_prompt_once(size: int, seed: int, shuffle: bool) -> None:
    order = EpochOrder(size, seed, shuffle=shuffle)
    for epoch in range(4):
        assert sorted(order.place(epoch * size + place) for place in range(size)) == list(range(size))


def test_epochs_and_seeds_differ_and_without_shuffling_none_does() -> None:
    def epochs(seed: int, shuffle: bool) -> list[tuple[int, ...]]:
        order = EpochOrder(50, seed, shuffle=shuffle)
        return [tuple(order.place(epoch * 50 + place) for place in range(50)) for epoch in range(3)]

    assert len({*epochs(1, True), *epochs(2, True)}) == 6
    assert {*epochs(1, False), *epochs(2, False)} == {tuple(range(50))}


def test_the_order_does_not_depend_on_what_was_asked_before() -> None:
    straight, wild = EpochOrder(30, 7, shuffle=True), EpochOrder(30, 7, shuffle=True)
    numbers = [permutation(300, "some")[place] for place in range(300)]
    jumping = {number: wild.place(number) for number in numbers}
    assert [jumping[number] for number in range(300)] == [straight.place(number) for number in range(300)]


@pytest.mark.parametrize("size", [1, 2])
def test_small_sets_have_an_order_too(size: int) -> None:
    assert sorted(permutation(size, "x")) == list(range(size))


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    assert list(permutation(10, "epoch 3 1")) == [3, 9, 2, 0, 6, 7, 4, 8, 5, 1]
