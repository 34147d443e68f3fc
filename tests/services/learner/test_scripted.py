"""The scripted learner's weights tell apart every history of training."""

from __future__ import annotations

import time

import pytest

from bus.errors import LearnerError
from services.learner.digests import weights_digest
from services.learner.protocol import Learner
from services.learner.scripted import ScriptedLearner
from tests.services.learner.factories import make_batch

PLAN = [[0, 1], [2, 3]]


def digest_after(*seeds: int, plan: list[list[int]] = PLAN) -> str:
    learner: Learner = ScriptedLearner()
    for step, seed in enumerate(seeds, start=1):
        learner.train(step, make_batch(seed), plan)
    return weights_digest(learner.weights())


def test_equal_histories_have_equal_weights() -> None:
    assert digest_after(1, 2, 3) == digest_after(1, 2, 3)


def test_a_lost_doubled_swapped_or_differently_split_batch_changes_the_weights() -> None:
    histories = [digest_after(1, 2), digest_after(1), digest_after(1, 2, 2), digest_after(2, 1), digest_after(1, 2, plan=[[0, 1, 2, 3]])]
    assert len(set(histories)) == len(histories)


def test_a_step_out_of_order_is_refused() -> None:
    with pytest.raises(LearnerError, match="step 3 cannot follow step 0"):
        ScriptedLearner().train(3, make_batch(1), PLAN)


def test_a_step_takes_as_long_as_it_is_told_to() -> None:
    started = time.monotonic()
    report = ScriptedLearner(seconds_per_step=0.05).train(1, make_batch(1), PLAN)
    assert 0.05 <= report.seconds["forward_backward"] <= time.monotonic() - started
