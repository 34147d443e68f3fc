"""Forecasts, worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from policies.forecast import Outcome, Situation, give_back, lend, stay
from policies.normal import positive_part

# Two standalone places whose samples end in 6 and 12 s, two hybrid ones, and four samples of 8 s that may be started; a cycle is two steps
# of two samples, 10 s each. docs/predictive.md tells it.
EXAMPLE = Situation(
    standalone=(6.0, 12.0), hybrid=(), waiting=(), fresh=(8.0, 8.0, 8.0, 8.0), standalone_places=2, hybrid_places=2, hybrid_speed=1.0,
    ready=0, step_samples=2, steps=2, step_s=10.0, lend_s=2.0, return_s=1.0, sd_s=0.0,
)  # fmt: skip


PAGE = Path(__file__).parents[2] / "docs" / "predictive.md"


def test_the_page_tells_these_numbers() -> None:
    lines = re.findall(r"^    (stay home|lend until \d) .*T = (\d+), W = (\d+), L = (\d+)$", PAGE.read_text(), re.MULTILINE)
    plans = {"stay home": stay(EXAMPLE, 0.0)} | {f"lend until {count}": returned(EXAMPLE, count) for count in (2, 4)}
    assert {plan: tuple(map(float, numbers)) for plan, *numbers in lines} == {
        plan: (outcome.end_s, outcome.wait_s, outcome.left_s) for plan, outcome in plans.items()
    }


def returned(now: Situation, count: int, doubt: float = 0.0) -> Outcome:
    return give_back(lend(now), count, doubt)


def test_devices_that_stay_wait_for_the_standalone_replicas() -> None:
    """Samples end at 6, 12, 14, 20, 22, 28 s: the first batch is there at 12 s, the second one, at 20 s, before it is needed."""
    assert stay(EXAMPLE, 0.0) == Outcome(give_back_at=0, end_s=32.0, wait_s=12.0, left_s=0.0)


def test_devices_that_are_lent_come_back_to_a_batch() -> None:
    """With the hybrids they end at 6, 10, 10 s; the devices go back at 10 s, are home at 11 s, and the other samples are in time."""
    assert returned(EXAMPLE, 2) == Outcome(give_back_at=2, end_s=31.0, wait_s=0.0, left_s=0.0)
    assert returned(EXAMPLE, 4) == Outcome(give_back_at=4, end_s=33.0, wait_s=0.0, left_s=0.0)


def test_what_hybrids_run_at_the_cut_waits_for_a_standalone_place_with_its_seconds_kept() -> None:
    """Cut at 0: the hybrid's sample, 9 s from its end, goes on at 6 s where the first one ended."""
    now = replace(EXAMPLE, hybrid=(9.0,), fresh=(), lend_s=0.0, ready=1)
    assert returned(now, 1) == Outcome(give_back_at=1, end_s=26.0, wait_s=5.0, left_s=0.0)


def test_a_hybrid_may_be_faster() -> None:
    slow, fast = replace(EXAMPLE, hybrid_speed=0.5), replace(EXAMPLE, hybrid_speed=2.0)
    assert lend(EXAMPLE).done[:3] == [6.0, 10.0, 10.0]
    assert lend(fast).done[:3] == [6.0, 6.0, 6.0]
    assert lend(slow).done[:3] == [6.0, 12.0, 14.0]


def test_work_left_at_the_end_counts_at_its_price() -> None:
    now = replace(EXAMPLE, steps=1, step_s=3.0)
    assert stay(now, 0.0) == Outcome(give_back_at=0, end_s=15.0, wait_s=12.0, left_s=5.0 + 7.0 + 8.0)
    assert stay(now, 0.0).score(0.25) == 20.0


def test_samples_that_nobody_can_finish_are_never_ready() -> None:
    now = replace(EXAMPLE, standalone=(), standalone_places=0)
    assert stay(now, 0.0).end_s == inf
    assert returned(now, 2).end_s == inf
    assert returned(now, 4).end_s == 2.0 + 16.0 + 1.0 + 20.0


def test_at_the_end_of_the_data_the_last_step_takes_what_there_is() -> None:
    now = replace(EXAMPLE, fresh=(8.0,))
    assert stay(now, 0.0) == Outcome(give_back_at=0, end_s=32.0, wait_s=12.0, left_s=0.0)
    assert stay(replace(now, standalone=(), fresh=()), 0.0).end_s == 20.0


def test_lengths_that_are_drawn_make_a_trainer_wait_that_would_be_just_in_time() -> None:
    """Two samples are lacking, of standard deviation 4 s, on two places: 4 · √2 / 2 s."""
    calm, doubtful = returned(EXAMPLE, 2), returned(replace(EXAMPLE, sd_s=4.0), 2, doubt=1.0)
    assert doubtful.wait_s == pytest.approx(positive_part(-1.0, 4.0 * 2**0.5 / 2))
    assert doubtful.end_s == pytest.approx(calm.end_s + doubtful.wait_s)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_a_costlier_swing_never_scores_better(count: int) -> None:
    costs = [replace(EXAMPLE, lend_s=2.0 * factor, return_s=1.0 * factor) for factor in (0, 1, 2, 4)]
    ends = [returned(now, count).end_s for now in costs]
    assert ends == sorted(ends)
