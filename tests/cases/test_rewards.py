"""C-04: a reward that fails once costs one sample; one that always fails ends the run with its traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bus.events import BatchFormed, BlobRef, Event, RunEnded, SampleDropped, SampleReady, StepDone
from bus.recording import Recording
from bus.settings import Settings
from services.controller.failures import Failures
from tests.cases.runs import of_kind, run_plan, small_plan
from tests.simulation.plans import Faults

TIMEOUT_S = 120

CONFIG = """
model: {path: scripted}
data: {task: sorting, seed: 3}
rollout: {engine: scripted, n: 2, max_running_requests: 4}
scripted: {seconds_per_step: 0.01, tokens_per_second: 2000, shortest_answer: 4, longest_answer: 12}
async_training: {ppo_mini_batch_size: 4, trigger_parameter_sync_step: 2, total_steps: 4}
devices: unpinned
"""

ALWAYS = """
def reward(prompt, answer, reference):
    return {}[reference]
"""
ONCE = """
from pathlib import Path

def reward(prompt, answer, reference):
    mark = Path(__file__).with_suffix(".failed")
    if not mark.exists():
        mark.touch()
        raise RuntimeError("only this once")
    return 0.5
"""
HANGS = """
import time

def reward(prompt, answer, reference):
    time.sleep(600)
"""
NAN = """
def reward(prompt, answer, reference):
    return float("nan")
"""
TEXT = """
def reward(prompt, answer, reference):
    return "good"
"""


def run(folder: Path, reward: str, *settings: str, threads: bool = True) -> tuple[subprocess.CompletedProcess[str], list[Event]]:
    """`swingshift run` with this reward; what it said, and the events of its recording."""
    (folder / "mine.py").write_text(reward)
    (folder / "config.yaml").write_text(CONFIG)
    given = (f"folder={folder}", f"data.reward={folder}/mine.py:reward", *settings)
    command = [sys.executable, "-m", "swingshift", "run", str(folder / "config.yaml"), "--run", "r", *(["--in-process"] if threads else [])]
    done = subprocess.run(
        [*command, *(part for setting in given for part in ("--set", setting))],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    with Recording.open(folder / "r") as recording:
        return done, [entry.event for entry in recording.entries()]


def test_c04_a_reward_that_always_raises_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    done, events = run(tmp_path, ALWAYS, "rollout.max_failed_samples_in_a_row=6", "supervisor.grace_s=5", threads=False)
    ended = next(event for event in events if isinstance(event, RunEnded))
    assert done.returncode != 0
    assert ended.reason == "failed"
    for words in (
        "6 samples failed one after the other, none was scored in between; the last one: the reward raised (answer 0): Traceback",
        "mine.py",
        "return {}[reference]",
        "KeyError: '",
    ):
        assert words in ended.detail
        assert words in done.stdout.replace("\n", " ") + done.stderr.replace("\n", " ")
    assert not [event for event in events if isinstance(event, StepDone)]
    assert (tmp_path / "r" / "code" / "mine.py").read_text() == ALWAYS


def test_c04_a_reward_that_raises_once_costs_its_sample_which_is_replaced(tmp_path: Path) -> None:
    done, events = run(tmp_path, ONCE)
    assert done.returncode == 0, done.stdout + done.stderr
    dropped = [event for event in events if isinstance(event, SampleDropped)]
    assert [event.reason for event in dropped] == ["failed"]
    assert "RuntimeError: only this once" in dropped[0].detail
    trained = [sample for event in events if isinstance(event, BatchFormed) for sample in event.samples]
    assert len(trained) == len(set(trained)) == 16
    assert dropped[0].sample not in trained
    assert [event.reason for event in events if isinstance(event, RunEnded)] == ["completed"]


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (HANGS, "the reward is late (answer 0): there was no reward within 0.5 s, so the worker was ended"),
        (NAN, "the reward is no finite number (answer 0): the reward function returned nan: return a finite number"),
        (TEXT, "the reward is no finite number (answer 0): the reward function returned 'good', of type str: return a float"),
    ],
    ids=["hangs", "nan", "text"],
)
def test_c04_a_reward_that_never_gives_a_number_ends_the_run_and_says_why(tmp_path: Path, reward: str, words: str) -> None:
    done, events = run(tmp_path, reward, "rollout.max_failed_samples_in_a_row=2", "rollout.reward_timeout_s=0.5")
    ended = next(event for event in events if isinstance(event, RunEnded))
    assert done.returncode != 0
    assert ended.reason == "failed"
    assert words in ended.detail


@pytest.mark.parametrize("seed", range(10))
def test_c04_when_every_reward_fails_the_run_ends_at_the_limit_however_often_the_controller_dies(seed: int) -> None:
    plan = small_plan(max_failed_samples_in_a_row=5)
    faults = Faults(reward_fails=1.0, crashes=4, crash_chance=0.1, aimed={"SampleDropped": 3})
    entries = run_plan(plan, seed, faults)
    assert [event.reason for event in of_kind(entries, RunEnded)] == ["failed"]
    assert "5 samples failed one after the other" in of_kind(entries, RunEnded)[0].detail
    assert not of_kind(entries, StepDone)


@pytest.mark.parametrize("seed", range(10))
def test_c04_rewards_that_fail_now_and_then_cost_their_samples_only(seed: int) -> None:
    entries = run_plan(small_plan(), seed, Faults(reward_fails=0.3))
    assert [event.reason for event in of_kind(entries, RunEnded)] == ["completed"]
    assert sum(step.num_samples for step in of_kind(entries, StepDone)) == 12


def failed(sample: int) -> SampleDropped:
    return SampleDropped(sample=sample, reason="failed", detail=f"for reason {sample}")


def ready(sample: int) -> SampleReady:
    blob = BlobRef(name="b", num_bytes=1, digest="d")
    return SampleReady(sample=sample, num_tokens=1, oldest_version=0, newest_version=0, mean_reward=0.0, blob=blob)


def verdict(*events: Event) -> str:
    settings = Settings()
    settings.apply(small_plan(max_failed_samples_in_a_row=3))
    failures = Failures(settings)
    for event in events:
        failures.apply(event)
    return failures.verdict


def test_c04_failures_count_only_in_a_row() -> None:
    assert verdict(failed(0), failed(1)) == ""
    assert verdict(failed(0), failed(1), failed(2)).endswith("the last one: for reason 2")
    assert verdict(failed(0), failed(1), ready(2), failed(3), failed(4)) == ""
    assert verdict(failed(0), failed(1), SampleDropped(sample=2, reason="filtered"), failed(3), failed(4)) == ""
    assert verdict(failed(0), failed(1), SampleDropped(sample=9, reason="stale"), failed(2)) != ""
