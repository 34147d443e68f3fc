"""The learning rate as a function of the step."""

from __future__ import annotations

import math

import pytest

from services.learner.config import LearnerConfig, Schedule
from services.learner.schedule import learning_rate


def rates(schedule: Schedule, total_steps: int, *, warmup: int = 0, min_lr_ratio: float = 0.0, steps: int | None = None) -> list[float]:
    config = LearnerConfig(model="m", lr=1.0, lr_schedule=schedule, lr_warmup_steps=warmup, min_lr_ratio=min_lr_ratio)
    return [learning_rate(config, step, total_steps) for step in range(1, (steps or total_steps) + 1)]


def test_constant_stays() -> None:
    assert rates("constant", 4) == [1.0] * 4


def test_linear_falls_evenly_and_leaves_no_planned_step_idle() -> None:
    assert rates("linear", 4) == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_cosine_falls_along_half_a_wave_to_its_floor() -> None:
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * place / 5)) / 2 for place in range(5)]
    assert rates("cosine", 5, min_lr_ratio=0.1) == pytest.approx(expected)


def test_warm_up_rises_evenly_to_the_first_full_rate() -> None:
    assert rates("linear", 6, warmup=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 2 / 3, 1 / 3])


def test_steps_after_the_plan_stay_at_the_floor() -> None:
    assert rates("linear", 2, min_lr_ratio=0.2, steps=5)[2:] == pytest.approx([0.2] * 3)


def test_a_warm_up_longer_than_the_run_keeps_rising() -> None:
    assert rates("cosine", 3, warmup=9) == pytest.approx([0.1, 0.2, 0.3])


def test_a_step_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="step 0"):
        learning_rate(LearnerConfig(model="m"), 0, 10)
