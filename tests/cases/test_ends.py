"""C-02, C-08, C-44: the data ends, at the worst moments."""

from __future__ import annotations

import pytest

from bus.events import PromptsExhausted, RunEnded, SampleDropped, StepDone, SwitchDone, SwitchStarted
from tests.cases.runs import of_kind, positions, run_plan, small_plan


@pytest.mark.parametrize("seed", range(5))
def test_c02_five_prompts_for_twenty_steps_end_cleanly(seed: int) -> None:
    entries = run_plan(small_plan(num_prompts=5, total_steps=20), seed)
    assert len(of_kind(entries, PromptsExhausted)) == 1
    assert of_kind(entries, RunEnded)[0].reason == "prompts_exhausted"
    assert sum(step.num_samples for step in of_kind(entries, StepDone)) == 5


@pytest.mark.parametrize("seed", range(10))
def test_c08_prompts_that_end_while_the_devices_are_lent_bring_them_back(seed: int) -> None:
    """Lent for more samples than there are: the threshold falls to what can still come."""
    entries = run_plan(small_plan(num_prompts=7, total_steps=20, policy_params={}, standalone=()), seed)
    lends = [started for started in of_kind(entries, SwitchStarted) if started.target == "rollout"]
    assert any(started.give_back_at > 3 for started in lends), "nothing was lent for more than the rest"
    assert of_kind(entries, RunEnded)[0].reason == "prompts_exhausted"
    assert len(of_kind(entries, SwitchDone)) % 2 == 0, "the devices did not come home"


@pytest.mark.parametrize(("tail", "trained", "dropped"), [("train", 5, 0), ("drop", 4, 1)])
def test_c44_the_last_partial_batch_is_trained_or_said_to_be_dropped(tail: str, trained: int, dropped: int) -> None:
    entries = run_plan(small_plan(num_prompts=5, total_steps=20, tail=tail))
    assert sum(step.num_samples for step in of_kind(entries, StepDone)) == trained
    drops = of_kind(entries, SampleDropped)
    assert [drop.reason for drop in drops] == ["tail"] * dropped
    assert all(position < positions(entries, RunEnded)[0] for position in positions(entries, SampleDropped))
