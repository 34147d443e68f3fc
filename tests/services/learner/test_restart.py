"""A trainer that is killed in the middle of a cycle comes back to the same bits when π_old is that of the cycle's start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel
from typer.testing import CliRunner, Result

from bus.embedded import folder_url
from bus.events import CheckpointSaved, Event, RedoDiverged, ServiceStarted, StepDone, WeightsApplied, WeightsPublished
from services.cli.app import build_app
from services.learner.digests import weights_digest
from swingshift import replay
from tests.serving import kill_all, swingshift
from tests.test_end_to_end import TRAINING, command, follow, recorded, steps_of, wait_for_log, wait_until

SETTINGS = (
    "actor.old_logprobs=recompute",
    "actor.use_kl_loss=true",
    "actor.entropy_coeff=0.01",
    "replicas.hybrid=0",
    "async_training.total_steps=6",
    "async_training.checkpoint_every_versions=3",
    "async_training.on_redo_diverged=stop",
    "weights.transport=file",
    "weights.dtype=bfloat16",
    "weights.delta=on",
)
"""No checkpoint before step 6: a restart before it redoes everything, two starts of cycles among it. What is published is not, bit for bit,
what is trained and saved."""


def test_a_trainer_killed_in_mid_cycle_and_then_a_whole_run_come_back_bit_for_bit_and_versions_are_exported(
    tmp_path: Path, run: str
) -> None:
    """After the second kill there is neither a checkpoint nor a file of the newest published weights: they are trained again."""
    pid, folder = 0, tmp_path / run
    with subprocess.Popen(command(tmp_path, TRAINING, run, *SETTINGS), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: folder_url(folder / "server") is not None)
        url = folder_url(folder / "server")
        assert url is not None
        wait_for_log(url, run)
        for entry in follow(url, run):
            if isinstance(entry.event, ServiceStarted) and entry.source == "trainer":
                pid = entry.event.pid
            if isinstance(entry.event, StepDone) and entry.event.step == 3:
                os.kill(pid, signal.SIGKILL)
            if isinstance(entry.event, StepDone) and entry.event.step == 5:
                kill_all(process)
                break
    for path in (folder / "weights").glob("weights-e*"):
        path.unlink()
    assert "the published weights of version 2 are gone" in swingshift("run", "--resume", str(folder), "--no-verify")
    assert replay(["train", str(folder)]) == 0
    entries = recorded(tmp_path, run)
    events = [entry.event for entry in entries]
    assert steps_of(entries) == list(range(1, 7))
    assert sum(entry.source == "trainer" and isinstance(entry.event, ServiceStarted) for entry in entries) == 3
    assert not [event for event in events if isinstance(event, RedoDiverged)]
    check_deltas(events)
    steps = {event.step: event.metrics for event in events if isinstance(event, StepDone)}
    # The first step of a cycle is its own π_old, the second one is measured against it.
    assert [steps[step]["actor/ppo_kl"] == 0.0 for step in range(1, 7)] == [True, False] * 3
    assert steps[6]["actor/kl"] > 0
    assert "rollout/is_weight_mean" in steps[1]
    check_exports(tmp_path, run, {event.version: event.digest for event in events if isinstance(event, WeightsPublished)})
    assert [event.version for event in events if isinstance(event, CheckpointSaved)] == [3]


def check_deltas(events: list[Event]) -> None:
    """The first publication of each of the three trainers has no delta."""
    published = {event.version: event for event in events if isinstance(event, WeightsPublished)}
    assert [version for version, event in published.items() if event.delta is None] == [0, 2, 3]
    assert {event.dtype for event in published.values()} == {"bfloat16"}
    for event in events:
        if isinstance(event, WeightsApplied):
            full, delta = published[event.version].num_bytes, published[event.version].delta
            assert (event.transport, event.num_bytes) in {("file", full), ("delta", delta and delta.num_bytes)}
    assert any(isinstance(event, WeightsApplied) and event.transport == "delta" for event in events)


def check_exports(folder: Path, run: str, digests: dict[int, str]) -> None:
    """After the run, without its server: what was saved can be had, the rest is named."""
    done = export("--version", "3", "--runs", str(folder), run)
    assert done.exit_code == 0, done.output
    exported: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder / run / "export-v3", local_files_only=True)
    weights = {name: tensor for name, tensor in exported.state_dict().items() if name != "lm_head.weight"}
    assert weights_digest(weights) == digests[3]
    # What was put back when the run went on may still be there.
    assert re.search(r"those that can be exported: (2, )?3;", export("--version", "1", "--runs", str(folder), run).output)


def export(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(lambda _: 0), ["export", *arguments], env={"REDIS_URL": ""})
