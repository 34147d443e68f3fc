"""DAPO's filtering of samples without signal, as a user runs it, and what ends it when there is never a signal."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.events import RunEnded, SampleDropped, StepDone
from tests.cases.runs import of_kind, run_plan, small_plan
from tests.simulation.plans import Faults
from tests.test_end_to_end import SCRIPTED, recorded, run_to_the_end

REWARD = """
def reward(prompt, answer, reference):
    return {value}
"""


def test_a_sample_without_signal_is_dropped_and_replaced(tmp_path: Path) -> None:
    """Two answers of one length get one reward; the scripted engine's lengths differ by answer, so some samples have a signal."""
    (tmp_path / "reward.py").write_text(REWARD.format(value="float(len(answer) % 2)"))
    run_to_the_end(
        tmp_path,
        SCRIPTED,
        "filter",
        "--in-process",
        "rollout.filter_groups=true",
        f"data.reward={tmp_path / 'reward.py'}:reward",
        "async_training.total_steps=6",
    )
    entries = recorded(tmp_path, "filter")
    drops = [drop for drop in of_kind(entries, SampleDropped) if drop.reason == "filtered"]
    assert drops
    assert all(drop.detail.startswith("all 2 answers have the reward") for drop in drops)
    steps = of_kind(entries, StepDone)
    assert [step.num_samples for step in steps] == [4] * 6
    assert of_kind(entries, RunEnded)[0].reason == "completed"


@pytest.mark.parametrize("seed", range(5))
def test_filtering_is_bounded(seed: int) -> None:
    """No sample ever has a signal: the run says so instead of generating for ever."""
    entries = run_plan(small_plan(max_filtered_samples_in_a_row=20), seed, Faults(filtered=1.0))
    ended = of_kind(entries, RunEnded)[0]
    assert ended.reason == "failed"
    assert ended.detail.startswith("20 samples were filtered one after the other")


def test_a_ready_sample_starts_the_count_anew() -> None:
    entries = run_plan(small_plan(max_filtered_samples_in_a_row=8, total_steps=12), faults=Faults(filtered=0.5))
    assert len([drop for drop in of_kind(entries, SampleDropped) if drop.reason == "filtered"]) > 8
    assert of_kind(entries, RunEnded)[0].reason == "completed"
