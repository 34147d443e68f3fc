"""A node removed at each phase of a swing, whoever is on it: the run goes on, nothing is lost, nothing is done twice. Takes minutes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bus.events import KillRequested, ReplicaLost, ServiceLost, StepDone
from tests.clusters import ThreeNodes
from tests.ray_losses import PHASES, TRAINING, check_whole, in_phase, lost_services, reissued, running, until_back

GANG = ("trainer", "replica:h0")
VICTIMS: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {
    "trainer and hybrid": ("b", GANG, {}),
    "trainer, hybrid and controller": ("b", (*GANG, "controller"), {"controller": "b"}),
    "standalone and rollouter": ("c", ("replica:s0", "rollouter"), {"rollouter": "c"}),
    "standalone and controller": ("c", ("replica:s0", "controller"), {"controller": "c"}),
}
"""Which node is lost, who is on it, and where they are bound to."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_node_removed_at_each_phase_of_a_swing_costs_no_step_and_no_answer(
    victim: str, three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path
) -> None:
    node, services, seats = VICTIMS[victim]
    with running(three_nodes, redis_url, run, tmp_path, 100_000, seats) as process:
        for phase in PHASES:
            process.wait_for(in_phase(phase))
            node = three_nodes.replace(node)
            until_back(process, services)
        process.interrupt()
        assert process.end() == 0, process.account()
    entries = process.recorded()
    check_whole(entries)
    lost = lost_services(entries)
    assert all(lost.count(service) >= len(PHASES) for service in services), lost
    assert reissued(entries) > 0


def test_services_of_a_lost_node_come_back_on_the_nodes_that_are_left(
    three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path
) -> None:
    anywhere = {"trainer": "", "replica:h0": "", "replica:s0": "", "replica:s1": "a", "rollouter": "", "controller": ""}
    with running(three_nodes, redis_url, run, tmp_path, 100_000, anywhere, strategy="spread") as process:
        process.wait_for(StepDone)
        before = three_nodes.where(run)
        assert before["trainer"] == before["replica:h0"], "a hybrid is where the trainer is"
        node = next(before[service] for service in ("trainer", "replica:s0") if before[service] != "a")
        lost = [service for service, its_node in before.items() if its_node == node and service not in ("policy", "archiver")]
        three_nodes.remove(node)
        until_back(process, lost)
        after = three_nodes.where(run)
        assert {after[service] for service in lost} <= {"a", "b", "c"} - {node}
        process.interrupt()
        assert process.end() == 0, process.account()
    check_whole(process.recorded())


def test_a_model_trains_on_to_the_same_weights_when_the_node_of_its_trainer_is_lost(
    three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path
) -> None:
    """The redo from the checkpoint comes to what was published, on the node that takes the place of the lost one."""
    with running(three_nodes, redis_url, run, tmp_path, 100_000, config=TRAINING) as process:
        process.wait_for(lambda entry: isinstance(entry.event, StepDone) and entry.event.step == 5)
        three_nodes.replace("b")
        until_back(process, GANG)
        process.interrupt()
        assert process.end() == 0, process.account()
    check_whole(process.recorded())


def test_a_killed_raylet_is_a_lost_node(three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path) -> None:
    with running(three_nodes, redis_url, run, tmp_path, 100_000) as process:
        process.wait_for(StepDone)
        three_nodes.kill_raylet("c")
        three_nodes.add("c2", resources={"c": 100.0})
        until_back(process, ("replica:s0",))
        process.interrupt()
        assert process.end() == 0, process.account()
    check_whole(process.recorded())


def test_a_killed_replica_is_lost_only_when_the_cluster_says_that_its_node_is_dead(
    three_nodes: ThreeNodes, redis_url: str, run: str, tmp_path: Path
) -> None:
    """Its node hangs: nobody there can say that its process is gone."""
    with running(three_nodes, redis_url, run, tmp_path, 100_000, deadlines="{update_s: 1, kill_s: 60}") as process:
        process.wait_for(StepDone)
        lost_id = three_nodes.freeze("c")
        asked = process.wait_for(KillRequested)
        assert asked.event.replica == "s0"  # type: ignore[attr-defined]
        told = process.wait_for(lambda entry: isinstance(entry.event, ServiceLost) and entry.event.service == "replica:s0")
        dead = three_nodes.dead()
        assert lost_id in dead, "its loss was said before the cluster had"
        assert "is gone" in told.event.detail  # type: ignore[attr-defined]
        process.wait_for(lambda entry: isinstance(entry.event, ReplicaLost) and entry.event.replica == "s0")
        three_nodes.remove("c")
        process.interrupt()
        assert process.end() == 0, process.account()
    check_whole(process.recorded())
