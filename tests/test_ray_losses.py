"""What a run on a cluster bears: nodes, actors and drivers that are lost in its middle. At each phase of a swing: test_ray_losses_hard."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from bus.events import ServiceLost, ServiceStarted, StepDone
from tests.clusters import ThreeNodes, resume_on
from tests.ray_losses import check_whole, in_phase, parent_of, pid_of, reissued, running, until_back, wait_until_gone
from tests.serving import is_alive


def test_lost_nodes_and_actors_cost_no_step_and_no_answer_and_ctrl_c_leaves_nobody_behind(
    three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path
) -> None:
    """A replica's actor; the node of trainer and hybrid while it is woken; that of a replica, rollouter and controller at the cut."""
    with running(three_nodes, redis_url, run, tmp_path, 100_000, {"rollouter": "c", "controller": "c"}) as process:
        process.wait_for(in_phase("lend: SwitchDone"))
        os.kill(parent_of(pid_of(process, "replica:s1")), signal.SIGKILL)
        until_back(process, ("replica:s1",))
        process.wait_for(in_phase("lend: WakeRequested"))
        three_nodes.replace("b")
        until_back(process, ("trainer", "replica:h0"))
        process.wait_for(in_phase("back: RoutesCut"))
        three_nodes.replace("c")
        until_back(process, ("replica:s0", "rollouter", "controller"))
        process.interrupt()
        assert process.end() == 0, process.account()
        pids = [entry.event.pid for entry in process.entries if isinstance(entry.event, ServiceStarted) and entry.source != "monitor"]
        assert not [pid for pid in pids if is_alive(pid)]
        assert three_nodes.where(run) == {}
    entries = process.recorded()
    check_whole(entries)
    assert reissued(entries) > 0
    told = {entry.event.service: entry.event.detail for entry in entries if isinstance(entry.event, ServiceLost)}
    assert "its actor has died" in told["replica:s1"]
    assert all("is gone" in told[service] for service in ("trainer", "replica:h0", "replica:s0", "rollouter", "controller")), told


def test_a_run_whose_driver_was_killed_ends_its_services_and_goes_on_with_resume(
    three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path
) -> None:
    with running(three_nodes, redis_url, run, tmp_path, 16) as process:
        process.wait_for(lambda entry: isinstance(entry.event, StepDone) and entry.event.step == 3)
        process.kill()
        wait_until_gone([entry.event.pid for entry in process.entries if isinstance(entry.event, ServiceStarted)])
        with resume_on(three_nodes, redis_url, run, tmp_path) as again:
            assert again.end() == 0, again.account()
    check_whole(again.recorded(), 16)
