"""Runs with evaluation as a user starts them, on a real server: one loses a process, one has a real (tiny) model that decodes greedily."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import cast

import pytest

from bus.connection import Connection
from bus.entry import Entry
from bus.events import EvalDone, EvalRequested, EvalScored, GenerationRequested, RunEnded, ServiceStarted, SwitchStarted, WeightsPublished
from bus.keys import Keys
from tests.test_end_to_end import SCRIPTED, TRAINING, command, follow, recorded, run_to_the_end, wait_for_log

EVALUATION = """
evaluation: {every_versions: 2, before_train: true}
"""
SETTINGS = ("data.val_prompts=6", "async_training.total_steps=18")


def evaluations_of(entries: list[Entry]) -> dict[int, EvalDone]:
    return {entry.event.version: entry.event for entry in entries if isinstance(entry.event, EvalDone)}


@pytest.mark.parametrize(
    ("settings", "own_swing"),
    [
        ((), False),
        (("replicas.standalone=0", "policy.name=static_fully_async", "policy.params={}"), True),
    ],
    ids=["both kinds", "only hybrids"],
)
def test_every_second_version_and_the_initial_one_are_evaluated(tmp_path: Path, settings: tuple[str, ...], own_swing: bool) -> None:
    summary = run_to_the_end(tmp_path, SCRIPTED + EVALUATION, "evaluated", "--in-process", *SETTINGS, *settings)
    entries = recorded(tmp_path, "evaluated")
    done = evaluations_of(entries)
    assert list(done) == [0, 2, 4, 6]
    assert all((event.num_prompts, event.partial) == (6, False) for event in done.values())
    lends = {entry.event.reason for entry in entries if isinstance(entry.event, SwitchStarted)}
    assert ("evaluation" in lends) == own_swing
    assert [evaluation["version"] for evaluation in summary["evaluations"]] == [0, 2, 4, 6]  # type: ignore[attr-defined]


def test_a_trained_model_is_evaluated_greedily_with_answers_of_the_version_alone_while_others_are_kept_over_updates(tmp_path: Path) -> None:
    config = TRAINING + "evaluation: {every_versions: 1, before_train: true}\n"
    settings = ("data.val_prompts=5", "async_training.total_steps=4", "rollout.weight_update_mode=keep")
    run_to_the_end(tmp_path, config, "trained", "--in-process", *settings)
    entries = recorded(tmp_path, "trained")
    published = [entry.event.version for entry in entries if isinstance(entry.event, WeightsPublished)]
    done = evaluations_of(entries)
    assert sorted(done) == published == [0, 1, 2]
    scored = [entry.event for entry in entries if isinstance(entry.event, EvalScored)]
    assert all(len(event.rewards) == 1 and 0 <= event.rewards[0] <= 1 for event in scored)


def payloads_of(url: str, run: str) -> list[str]:
    found = cast("list[bytes]", Connection(url).call("KEYS", Keys(run).blob("*").replace("{", "\\{").replace("}", "\\}")))
    return [name.decode() for name in found]


def test_a_rollouter_killed_in_the_middle_of_an_evaluation_goes_on_with_it_and_leaves_no_payload(
    tmp_path: Path, redis_url: str, run: str
) -> None:
    config = SCRIPTED + EVALUATION
    begin = [*command(tmp_path, config, run, *SETTINGS, "scripted.tokens_per_second=100"), "--redis", redis_url]
    with subprocess.Popen(begin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for_log(redis_url, run)
        pids: list[int] = []
        killed_at = 0
        for entry in follow(redis_url, run):
            if isinstance(entry.event, ServiceStarted) and entry.source == "rollouter":
                pids.append(entry.event.pid)
            if isinstance(entry.event, EvalScored) and entry.event.version == 2 and not killed_at:
                os.kill(pids[0], signal.SIGKILL)
                killed_at = entry.position
        assert process.wait(timeout=60) == 0
    entries = recorded(tmp_path, run)
    assert len(pids) == 2
    assert all((event.num_prompts, event.partial) == (6, False) for event in evaluations_of(entries).values())
    scored = [(entry.event.version, entry.event.prompt) for entry in entries if isinstance(entry.event, EvalScored)]
    assert len(scored) <= len(set(scored)) + 6, "what was scored before is scored again"
    asked = [entry.event for entry in entries if isinstance(entry.event, GenerationRequested) and entry.event.evaluates == 2]
    assert len({(event.request, event.attempt) for event in asked}) == len(asked)
    assert not [name for name in payloads_of(redis_url, run) if ":eval-2" in name], "payloads of the evaluation are left"


def test_an_evaluation_out_of_time_is_partial_and_the_run_ends_in_order(tmp_path: Path) -> None:
    """Greedy answers of a slow engine: the limit passes before the end, if all are busy before the beginning; nobody waits for it."""
    settings = ("scripted.tokens_per_second=40", "evaluation.eval_timeout_s=0.4", "async_training.total_steps=3", "data.val_prompts=40")
    run_to_the_end(tmp_path, SCRIPTED + "evaluation: {every_versions: 1}\n", "late", "--in-process", *settings)
    entries = recorded(tmp_path, "late")
    done = evaluations_of(entries)
    assert list(done) == [1]
    assert done[1].partial
    assert done[1].num_prompts < 40
    assert sum(isinstance(entry.event, EvalRequested) for entry in entries) <= 1
    assert {entry.event.reason for entry in entries if isinstance(entry.event, RunEnded)} == {"completed"}
    assert json.loads((tmp_path / "late" / "summary.json").read_text())["evaluations"][0]["partial"] is True
