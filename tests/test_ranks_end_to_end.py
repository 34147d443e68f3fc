"""A run whose trainer is two ranks: one is killed, and the run ends with the bits that its recording gives again."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from bus.embedded import folder_url
from bus.events import CheckpointSaved, RedoDiverged, ServiceLost, ServiceStarted, StepDone
from swingshift import replay
from tests.test_end_to_end import TRAINING, command, follow, recorded, steps_of, wait_for_log, wait_until

SETTINGS = ("actor.ranks=2", "replicas.hybrid=0", "async_training.total_steps=6", "async_training.on_redo_diverged=stop")


def test_a_run_survives_the_loss_of_a_rank_and_is_trained_again_bit_for_bit(tmp_path: Path, run: str) -> None:
    with subprocess.Popen(command(tmp_path, TRAINING, run, *SETTINGS), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: folder_url(tmp_path / run / "server") is not None)
        url = folder_url(tmp_path / run / "server")
        assert url is not None
        wait_for_log(url, run)
        trainer = 0
        killed: list[int] = []
        for entry in follow(url, run):
            if isinstance(entry.event, ServiceStarted) and entry.source == "trainer":
                trainer = entry.event.pid
            if isinstance(entry.event, StepDone) and entry.event.step == 3 and not killed:
                killed = other_ranks(trainer)
                assert len(killed) == 1
                os.kill(killed[0], signal.SIGKILL)
        assert process.wait(timeout=60) == 0
    entries = recorded(tmp_path, run)
    events = [entry.event for entry in entries]
    assert steps_of(entries) == list(range(1, 7))
    assert sum(entry.source == "trainer" and isinstance(entry.event, ServiceStarted) for entry in entries) == 2
    assert [event.restarting for event in events if isinstance(event, ServiceLost)] == [True]
    assert not [event for event in events if isinstance(event, RedoDiverged)]
    assert [event for event in events if isinstance(event, CheckpointSaved)]
    assert replay(["train", str(tmp_path / run)]) == 0


def other_ranks(trainer: int) -> list[int]:
    """Process ids of the ranks that a trainer started."""
    children = Path(f"/proc/{trainer}/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text().split()]
    return [pid for pid in pids if b"services.learner.sharded.follow" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
