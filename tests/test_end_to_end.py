"""Whole runs as a user starts them: real processes, a real server, a real (tiny) model that really trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.entry import Entry
from bus.events import (
    BatchFormed,
    GenerationFinished,
    PolicyAttached,
    RunEnded,
    ServiceLost,
    ServiceStarted,
    StepDone,
    SwitchDone,
    SwitchStarted,
    TrainGranted,
)
from bus.recording import Recording
from bus.redis_log import RedisLog

TIMEOUT_S = 240

TRAINING = """
model:
  path: builtin
  shape: {hidden_size: 32, intermediate_size: 64, num_layers: 1, num_heads: 2, num_kv_heads: 1}
  warm_start: {steps: 3}
data: {task: sorting, seed: 3}
rollout: {n: 4, max_running_requests: 16}
actor: {lr: 1.0e-3}
async_training: {ppo_mini_batch_size: 4, trigger_parameter_sync_step: 2, total_steps: 8}
policy: {name: default, params: {deactivate_ratio: 0.6}}
devices: unpinned
"""

SCRIPTED = """
model: {path: scripted}
data: {task: sorting, seed: 3}
rollout: {engine: scripted, n: 2, max_running_requests: 4}
scripted: {seconds_per_step: 0.01, tokens_per_second: 400, shortest_answer: 4, longest_answer: 24}
async_training: {ppo_mini_batch_size: 4, trigger_parameter_sync_step: 3, total_steps: 60}
policy: {name: default, params: {deactivate_ratio: 0.6}}
devices: unpinned
"""


def command(folder: Path, config: str, run: str, *settings: str) -> list[str]:
    """`swingshift run` with this configuration."""
    path = folder / "config.yaml"
    path.write_text(config)
    sets = [part for setting in (f"folder={folder}", *settings) for part in ("--set", setting)]
    return [sys.executable, "-m", "swingshift", "run", str(path), "--run", run, *sets]


def run_to_the_end(folder: Path, config: str, run: str, *options: str) -> dict[str, object]:
    """The summary of a run that must end in order, verified."""
    settings = [option for option in options if not option.startswith("--")]
    flags = [option for option in options if option.startswith("--")]
    done = subprocess.run(
        [*command(folder, config, run, *settings), *(part for flag in flags for part in flag.split("=", 1))],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary: dict[str, object] = json.loads((folder / run / "summary.json").read_text())
    return summary


def recorded(folder: Path, run: str) -> list[Entry]:
    with Recording.open(folder / run) as recording:
        return list(recording.entries())


def steps_of(entries: list[Entry]) -> list[int]:
    return [entry.event.step for entry in entries if isinstance(entry.event, StepDone)]


def test_a_model_trains_while_its_device_is_lent_in_between(tmp_path: Path, redis_url: str, run: str) -> None:
    summary = run_to_the_end(tmp_path, TRAINING, run, f"--redis={redis_url}", "async_training.max_logprob_diff=1e-12")
    entries = recorded(tmp_path, run)
    assert steps_of(entries) == list(range(1, 9))
    check_agreement(summary, (tmp_path / run / "logs" / "trainer.log").read_text())
    assert summary["samples_trained"] == 32
    assert any(isinstance(entry.event, SwitchDone) and entry.event.target == "rollout" for entry in entries), "nothing was lent"
    losses = [entry.event.metrics["actor/loss"] for entry in entries if isinstance(entry.event, StepDone)]
    assert any(losses), "no step had a loss"
    kept = json.loads((tmp_path / run / "weights" / "initial.json").read_text())
    assert kept["copied"] is True
    assert (
        {"config.json", "model.safetensors"}
        <= set(kept["files"])
        == {path.name for path in (tmp_path / run / "weights" / "initial").iterdir()}
    )


def check_agreement(summary: dict[str, object], log: str) -> None:
    """Replicas and trainer have the same log-probabilities but for rounding, which is said where it is over the limit, once a version."""
    difference, found = summary["logprob_diff_same_version"], summary["disagreements"]
    assert isinstance(difference, float)
    assert isinstance(found, list)
    assert difference < 1e-3
    assert log.count("replicas and trainer disagree: in step ") == len(found) == len({one["version"] for one in found}) >= 1


@pytest.mark.parametrize(
    ("settings", "lends"),
    [
        (("replicas.hybrid=0", "rollout.weight_update_mode=keep", "scripted.tokens_per_second=200"), False),
        (("async_training.use_dynamic_resource_scheduling=false",), False),
        (("policy.name=static_fully_async", "policy.params={}"), False),
        (("policy.name=fixed_ratio",), True),
        (("replicas.standalone=0", "policy.params={}"), True),
    ],
    ids=["no hybrids, kept answers", "not dynamic", "static", "fixed ratio", "only hybrids"],
)
def test_every_shape_of_run_completes(tmp_path: Path, valkey_url: str, run: str, settings: tuple[str, ...], lends: bool) -> None:
    """In one process, on the other kind of server: what processes are to a run is seen in all other tests here."""
    run_to_the_end(tmp_path, SCRIPTED, run, f"--redis={valkey_url}", "--in-process", *settings, "async_training.total_steps=12")
    entries = recorded(tmp_path, run)
    assert steps_of(entries) == list(range(1, 13))
    lent = any(isinstance(entry.event, SwitchStarted) and entry.event.target == "rollout" for entry in entries)
    assert lent == lends
    assert {entry.event.reason for entry in entries if isinstance(entry.event, RunEnded)} == {"completed"}
    if "rollout.weight_update_mode=keep" in settings:
        ended = [entry.event for entry in entries if isinstance(entry.event, GenerationFinished)]
        assert "aborted" not in {event.outcome for event in ended}
        assert any(len(event.version_spans) > 1 for event in ended), "no answer lived through an update"


def follow(url: str, run: str) -> Iterator[Entry]:
    """Every entry of a run as it comes, until RunEnded."""
    with RedisLog.open(url, run) as log:
        position = 0
        while True:
            for entry in log.read(position, 512, block_ms=1000):
                position = entry.position
                yield entry
                if isinstance(entry.event, RunEnded):
                    return


def wait_for_log(url: str, run: str) -> None:
    from bus.errors import LogMissing

    for _ in range(600):
        try:
            RedisLog.open(url, run).close()
        except LogMissing:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the run made no log")


def test_killed_services_come_back_and_nothing_is_lost_or_trained_twice(tmp_path: Path, redis_url: str, run: str) -> None:
    """Every service is killed once with SIGKILL, each at another moment of a cycle."""
    victims = {
        "trainer": "StepDone", "rollouter": "SampleReady", "controller": "SwitchStarted", "policy": "TrainGranted",
        "archiver": "SwitchDone", "replica:s0": "GenerationFinished", "replica:h0": "RoutesOpened",
    }  # fmt: skip
    pids: dict[str, int] = {}
    with subprocess.Popen(
        [*command(tmp_path, SCRIPTED, run), "--redis", redis_url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        wait_for_log(redis_url, run)
        granted = 0
        for entry in follow(redis_url, run):
            event = entry.event
            if isinstance(event, ServiceStarted):
                pids[entry.source] = event.pid
            elif isinstance(event, PolicyAttached):
                pids |= {service: child_of(process.pid, service) for service in ("policy", "archiver")}
            granted += isinstance(event, TrainGranted)
            for source, kind in list(victims.items()):
                if granted > 2 and event.kind == kind and source in pids:
                    del victims[source]
                    os.kill(pids.pop(source), signal.SIGKILL)
                    break
        assert process.wait(timeout=60) == 0
    assert not victims, f"never killed: {victims}"
    entries = recorded(tmp_path, run)
    assert {entry.event.service for entry in entries if isinstance(entry.event, ServiceLost)} >= {
        "trainer",
        "rollouter",
        "controller",
        "policy",
        "archiver",
    }
    assert steps_of(entries) == list(range(1, 61))
    trained = [sample for entry in entries if isinstance(entry.event, BatchFormed) for sample in entry.event.samples]
    assert len(trained) == len(set(trained)) == 240


def child_of(parent: int, service: str) -> int:
    """The process of a service below `parent`, by its command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                its_parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if its_parent == parent and b"services.entry" in words and service.encode() in words:
                return int(folder.name)
    raise AssertionError(f"no process of {service} below {parent}")


def wait_until(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)
