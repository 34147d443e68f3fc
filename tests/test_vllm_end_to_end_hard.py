"""Whole runs with vLLM that are interrupted: nobody outlives them, and an engine that is killed comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bus.events import ReplicaAdded, ReplicaLost, RunEnded
from services.engines.vllm_processes import alive, descendants
from tests.services.engines.conftest import NEEDS_VLLM
from tests.test_end_to_end import recorded, wait_until
from tests.vllm_runs import START_S, cores_of, output_of, running

pytestmark = [NEEDS_VLLM, pytest.mark.timeout(900)]

ENDLESS = "async_training.total_steps=5000"


def test_a_killed_engine_core_is_a_lost_replica_that_comes_back_and_ctrl_c_ends_the_run_in_order(tmp_path: Path) -> None:
    with running(tmp_path, "killed", ENDLESS) as process:
        wait_until(lambda: "step 1/5000" in output_of(tmp_path), START_S)
        cores = cores_of(descendants([process.pid]))
        assert len(cores) == 2
        for core in cores:
            os.kill(core.pid, signal.SIGKILL)
        wait_until(lambda: output_of(tmp_path).count("is up: its engine took") >= 4 or len(_up(tmp_path)) >= 4, START_S)
        processes = descendants([process.pid])
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, output_of(tmp_path)
        assert not [other for other in processes if alive(other)]
    events = [entry.event for entry in recorded(tmp_path, "killed")]
    assert {event.replica for event in events if isinstance(event, ReplicaLost)} == {"s0", "h0"}
    assert len([event for event in events if isinstance(event, ReplicaAdded)]) == 4
    assert [event.reason for event in events if isinstance(event, RunEnded)] == ["stopped"]


def test_ctrl_c_while_the_engines_start_ends_the_run_in_order(tmp_path: Path) -> None:
    with running(tmp_path, "early", ENDLESS, "supervisor.grace_s=3600") as process:
        wait_until(lambda: bool(cores_of(descendants([process.pid]))), START_S)
        processes = descendants([process.pid])
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, output_of(tmp_path)
        assert not [other for other in processes if alive(other)]
    assert [entry.event.reason for entry in recorded(tmp_path, "early") if isinstance(entry.event, RunEnded)] == ["stopped"]


@pytest.mark.parametrize("moment", ["while its engines start", "in the middle"])
def test_nobody_survives_a_killed_supervisor(tmp_path: Path, moment: str) -> None:
    with running(tmp_path, "orphans", ENDLESS) as process:
        if moment == "in the middle":
            wait_until(lambda: "step 1/5000" in output_of(tmp_path), START_S)
        else:
            wait_until(lambda: bool(cores_of(descendants([process.pid]))), START_S)
        processes = descendants([process.pid])
        process.kill()
        process.wait()
        wait_until(lambda: not [other for other in processes if alive(other)], 30)


def _up(folder: Path) -> list[ReplicaAdded]:
    return [entry.event for entry in recorded(folder, "killed") if isinstance(entry.event, ReplicaAdded)]
