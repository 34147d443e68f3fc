"""What a plan and a service are on a cluster: devices of a whole run, and what one process sees of them. None is needed for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bus.errors import ConfigError
from bus.events import RunPlanned
from services.config_file import make_config
from services.context import ServiceContext, make_context
from services.devices import Machine, as_far_as_here
from services.launcher.protocol import RunPlace, ServiceSpec
from services.learner.environment import THREADS, set_threads
from services.local_settings import check_local
from services.machine import machine_id
from services.plan import plan_run
from services.planned import config_of

TWO_NODES = Machine((), gpus=16, nodes=2)
ON_CPUS = Machine((), nodes=3)


def planned(machine: Machine, **sections: object) -> RunPlanned:
    return plan_run(make_config({"async_training": {"total_steps": 10}} | sections, "test"), "r1", machine)


def on_gpus(**sections: object) -> RunPlanned:
    """Two ranks with a hybrid replica over both, and a standalone one on two further GPUs."""
    settings: dict[str, object] = {
        "actor": {"device": "cuda", "ranks": 2}, "rollout": {"engine": "vllm", "engine_kwargs": {"tensor_parallel_size": 2}},
    }  # fmt: skip
    return planned(TWO_NODES, **settings | sections)


def context(
    plan: RunPlanned, tmp_path: Path, service: str, name: str = "", *, device: str | None = "", supervised: bool = True
) -> ServiceContext:
    """With a device of None it is on no cluster."""
    spec = ServiceSpec(service, name, device=device, token="t1")
    return make_context(RunPlace("unix://none", "r1", tmp_path), spec, plan, "code", supervised=supervised)


def test_gpus_are_numbered_over_the_whole_run() -> None:
    plan = on_gpus(replicas={"standalone": 7, "hybrid": 1})
    assert plan.devices["trainer"] == plan.devices["replica:h0"] == "cuda:0,cuda:1"
    assert plan.devices["replica:s6"] == "cuda:14,cuda:15"


def test_on_cores_nobody_is_bound_to_any_that_were_not_named() -> None:
    """Which ones there are is different on each node, and Ray says on which one a service is."""
    assert planned(ON_CPUS).devices == {}
    assert planned(ON_CPUS, devices={"trainer": [0, 1]}).devices == {"trainer": "0,1"}
    known = Machine((0, 1), nodes=3)
    with pytest.raises(ConfigError, match="2 is not there, the cluster of 3 nodes has on each node the cores 0, 1"):
        planned(known, devices={"trainer": [1, 2]})


def test_gpus_without_numbers_cannot_be_planned() -> None:
    with pytest.raises(ConfigError, match="Ray gives GPUs by their number only, leave devices at auto"):
        on_gpus(devices="unpinned")


@pytest.mark.parametrize(
    ("machine", "sections", "threads"),
    [
        (ON_CPUS, {"cluster": {"cpus": {"rank": 6}}}, 6),
        (ON_CPUS, {"cluster": {"cpus": {"rank": 0.5}}}, 1),
        (ON_CPUS, {"cluster": {"cpus": {"rank": 6}}, "devices": {"trainer": [0, 1]}}, 2),
        (ON_CPUS, {"cluster": {"cpus": {"rank": 6}}, "actor": {"num_threads": 3}}, 3),
        (Machine((0, 1, 2, 3)), {"cluster": {"cpus": {"rank": 6}}}, 2),
    ],
)
def test_a_rank_on_cores_has_as_many_threads_as_it_is_counted_for(machine: Machine, sections: dict[str, object], threads: int) -> None:
    plan = planned(machine, **sections)
    assert config_of(plan).actor.num_threads == threads
    assert plan_run(config_of(plan), "r1", machine) == plan


@pytest.mark.parametrize(("machine", "given", "kill_s"), [(ON_CPUS, {}, 120.0), (ON_CPUS, {"kill_s": 7}, 7.0), (Machine((0,)), {}, 30.0)])
def test_there_is_time_to_hear_that_a_node_is_gone(machine: Machine, given: dict[str, object], kill_s: float) -> None:
    assert planned(machine, deadlines=given).deadlines.kill_s == kill_s


def test_a_service_has_the_gpus_that_were_planned_by_other_names(tmp_path: Path) -> None:
    replica = context(on_gpus(), tmp_path, "replica", "s0", device="cuda:0,cuda:1")
    assert (replica.planned_device, replica.device, replica.own_device) == ("cuda:2,cuda:3", "cuda:0,cuda:1", "cuda:0,cuda:1")
    assert replica.engine_settings().vllm.tensor_parallel_size == 2
    here = context(on_gpus(), tmp_path, "replica", "s0", device=None)
    assert here.device == here.planned_device == "cuda:2,cuda:3"


def test_its_process_sees_those_that_ray_gave_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    replica = context(on_gpus(), tmp_path, "replica", "s0", device="cuda:0,cuda:1")
    set_threads(replica.own_device, replica.threads)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,7"


def test_a_replica_on_cores_has_as_many_threads_as_it_is_counted_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in THREADS:
        monkeypatch.setenv(name, "")
    plan = planned(ON_CPUS, cluster={"cpus": {"rank": 4, "replica": 3}})
    replica = context(plan, tmp_path, "replica", "s0")
    set_threads(replica.own_device, replica.threads)
    assert [os.environ[name] for name in THREADS] == ["3"] * len(THREADS)
    assert context(plan, tmp_path, "replica", "s0", device=None).threads == 1
    assert context(plan, tmp_path, "controller").threads == 1
    bound = planned(ON_CPUS, devices={"replica:s0": [4, 5]})
    assert context(bound, tmp_path, "replica", "s0").threads == 2


def test_a_replica_that_may_lose_touch_holds_a_lease(tmp_path: Path) -> None:
    plan = planned(ON_CPUS)
    assert context(plan, tmp_path, "replica", "s0").holds_a_lease
    assert not context(plan, tmp_path, "replica", "s0", device=None).holds_a_lease
    assert not context(plan, tmp_path, "trainer").holds_a_lease
    assert context(plan, tmp_path, "replica", "s0", device=None, supervised=False).holds_a_lease


def test_the_first_word_of_a_service_names_its_machine_and_what_it_is_known_by(tmp_path: Path) -> None:
    started = context(planned(ON_CPUS), tmp_path, "replica", "h0").started()
    assert (started.token, started.machine, started.role, started.pid) == ("t1", machine_id(), "hybrid", os.getpid())


@pytest.mark.parametrize(
    ("device", "gpus", "here"),
    [
        ("cuda:2,cuda:3", 8, "cuda:2,cuda:3"), ("cuda:40,cuda:41", 8, "cuda:0,cuda:1"), ("cuda:0,cuda:1,cuda:2,cuda:3", 2, "cuda:0,cuda:1"),
        ("cuda:0", 0, ""), ("0,1", 0, "0,1"), ("", 4, ""),
    ],
)  # fmt: skip
def test_devices_of_a_cluster_are_taken_on_one_machine_as_far_as_it_has_them(device: str, gpus: int, here: str) -> None:
    assert as_far_as_here(device, Machine((0, 1), gpus=gpus)) == here


def test_where_ray_puts_services_may_be_another_place_when_a_run_goes_on() -> None:
    check_local(["cluster.cpus.replica=4", "cluster.resources={trainer: {fast: 1}}", "cluster.strategy=spread"])
