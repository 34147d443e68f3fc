"""GPUs of replicas: how many each has, how many its engine uses, and which ones its process sees. None is needed for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bus.errors import ConfigError
from bus.events import RunPlanned
from services.config import RunConfig
from services.config_file import make_config
from services.context import make_context
from services.devices import Machine, check_parallel, tensor_parallel_size, this_machine, visible_gpus
from services.engines.vllm_arguments import engine_arguments
from services.launcher.protocol import RunPlace, ServiceSpec
from services.learner.environment import set_threads
from services.plan import plan_run
from services.planned import engine_config
from tests.services.data.folders import make_folder

VISIBLE = "CUDA_VISIBLE_DEVICES"
EIGHT = Machine((0, 1), gpus=8)


def config(kwargs: dict[str, object] | None = None, **sections: object) -> RunConfig:
    settings: dict[str, object] = {
        "async_training": {"total_steps": 10}, "actor": {"device": "cuda"}, "rollout": {"engine": "vllm", "engine_kwargs": kwargs or {}},
    }  # fmt: skip
    return make_config(settings | sections, "test")


def planned(kwargs: dict[str, object] | None = None, **sections: object) -> RunPlanned:
    return plan_run(config(kwargs, **sections), "r1", EIGHT)


def refusal(kwargs: dict[str, object] | None = None, **sections: object) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(kwargs, **sections)
    return str(caught.value)


def test_each_standalone_replica_gets_as_many_gpus_as_its_engine_is_to_use() -> None:
    plan = planned({"tensor_parallel_size": 2}, replicas={"standalone": 3, "hybrid": 0})
    assert plan.devices == {
        "trainer": "cuda:0", "replica:s0": "cuda:1,cuda:2", "replica:s1": "cuda:3,cuda:4", "replica:s2": "cuda:5,cuda:6",
    }  # fmt: skip
    words = refusal({"tensor_parallel_size": 2}, replicas={"standalone": 4, "hybrid": 0})
    assert "4 standalone replicas of 2 GPUs each: that takes 9 GPUs, this machine has 8" in words


def test_the_number_of_gpus_that_are_named_is_what_the_engine_uses() -> None:
    devices = {"trainer": "cuda:0", "replica:h0": "cuda:0", "replica:s0": "cuda:1,cuda:2,cuda:3,cuda:4"}
    found = config(devices=devices)
    assert plan_run(found, "r1", EIGHT).devices == devices
    assert [tensor_parallel_size(found, device) for device in devices.values()] == [1, 1, 4]
    assert tensor_parallel_size(config({"pipeline_parallel_size": 2}), devices["replica:s0"]) == 2
    assert tensor_parallel_size(config(), "0,1") == 1


@pytest.mark.parametrize(
    ("kwargs", "device", "words"),
    [
        ({"tensor_parallel_size": 2}, "cuda:1", "devices.replica:s0 is cuda:1, 1 GPU, and rollout.engine_kwargs asks for 2"),
        ({"tensor_parallel_size": 1}, "cuda:1,cuda:2", "2 GPUs, and rollout.engine_kwargs asks for 1 (tensor_parallel_size 1)"),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "cuda:1,cuda:2", "asks for 4 (tensor_parallel_size 2, pipeline_"),
        ({"pipeline_parallel_size": 2}, "cuda:1,cuda:2,cuda:3", "the number of GPUs must be a multiple of it"),
        ({}, "cuda:1,cuda:1", "it names a GPU twice"),
    ],
)
def test_another_number_of_gpus_than_the_engine_would_use_is_refused(kwargs: dict[str, object], device: str, words: str) -> None:
    devices = {"trainer": "cuda:0", "replica:s0": device}
    assert words in refusal(kwargs, devices=devices, replicas={"standalone": 1, "hybrid": 0})


def test_a_hybrid_replica_cannot_use_more_gpus_than_the_trainer_has() -> None:
    assert "devices.replica:h0 is cuda:0, 1 GPU, and rollout.engine_kwargs asks for 2" in refusal({"tensor_parallel_size": 2})


def test_heads_that_cannot_be_shared_out_evenly_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, config={"num_attention_heads": 14})
    devices = {"trainer": "cuda:0", "replica:s0": "cuda:1,cuda:2,cuda:3,cuda:4"}
    one: dict[str, object] = {"model": {"path": str(tmp_path)}, "replicas": {"standalone": 1, "hybrid": 0}}
    assert "the model's 14 attention heads cannot be shared out over 4 GPUs" in refusal(None, devices=devices, **one)
    check_parallel(config({"pipeline_parallel_size": 2}, devices=devices, **one), devices)


def test_the_embedded_engine_runs_on_one_gpu() -> None:
    devices = {"trainer": "cuda:0", "replica:s0": "cuda:1,cuda:2"}
    words = refusal(devices=devices, replicas={"standalone": 1, "hybrid": 0}, rollout={"engine": "embedded"})
    assert "2 GPUs: the embedded engine runs on one; rollout.engine vllm shares a model out over several" in words


def test_c30_each_of_a_replicas_gpus_has_the_same_share_of_its_memory_taken() -> None:
    devices = {"trainer": "cuda:0", "replica:h0": "cuda:0", "replica:s0": "cuda:1,cuda:2", "replica:s1": "cuda:2,cuda:3"}
    assert "cuda:2 would have 1.6 of its memory taken (replica:s0 0.8 + replica:s1 0.8)" in refusal(
        devices=devices, replicas={"standalone": 2, "hybrid": 1}
    )


@pytest.mark.parametrize(
    ("before", "device", "after"),
    [
        (None, "cuda:2,cuda:3", "2,3"),
        ("4,5,6,7", "cuda:2,cuda:3", "6,7"),
        ("GPU-aa, GPU-bb", "cuda:1", "GPU-bb"),
        ("4,5", "0,1", "4,5"),
    ],
)
def test_a_service_sees_the_gpus_that_were_planned_for_it(
    monkeypatch: pytest.MonkeyPatch, before: str | None, device: str, after: str
) -> None:
    """What vLLM's processes inherit; they number them from 0 on."""
    monkeypatch.delenv(VISIBLE, raising=False)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    if before is not None:
        monkeypatch.setenv(VISIBLE, before)
    set_threads(device)
    assert os.environ[VISIBLE] == after


def test_gpus_that_are_not_seen_any_more_are_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "4,5")
    with pytest.raises(ConfigError, match=r"cuda:2 was planned and CUDA_VISIBLE_DEVICES names 2 GPUs \(4, 5\)"):
        set_threads("cuda:2")


def test_only_gpus_that_this_process_sees_are_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "")
    assert visible_gpus() == ()
    assert this_machine().gpus == 0
    monkeypatch.delenv(VISIBLE)
    assert visible_gpus() is None


def test_vllm_is_told_how_many_gpus_its_replica_has_and_each_kind_of_replica_its_share(tmp_path: Path) -> None:
    devices = {"trainer": "cuda:0", "replica:h0": "cuda:0", "replica:s0": "cuda:1,cuda:2"}
    plan = planned(devices=devices, rollout={"engine": "vllm", "gpu_memory_utilization": 0.6, "standalone_gpu_memory_utilization": 0.9})
    for name, size, share in (("s0", 2, 0.9), ("h0", 1, 0.6)):
        context = make_context(RunPlace("unix://none", "r1", tmp_path), ServiceSpec("replica", name), plan, "")
        arguments = engine_arguments(context.engine_settings(), tmp_path, context.device)
        assert (arguments["tensor_parallel_size"], arguments["gpu_memory_utilization"]) == (size, share)
        assert arguments["enable_sleep_mode"] is True


@pytest.mark.parametrize("name", ["admit_requests", "admit_wait_steps"])
def test_settings_that_mean_nothing_to_vllm_are_refused(name: str) -> None:
    assert f"rollout.engine_kwargs.{name} is of the embedded engine" in refusal({name: 4})
    embedded = planned(rollout={"engine": "embedded", "engine_kwargs": {name: 4}})
    assert engine_config(config(rollout={"engine": "embedded", "engine_kwargs": {name: 4}}), embedded).kind == "embedded"
