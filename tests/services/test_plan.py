"""From a configuration to the plan: totals, devices, and what does not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.errors import ConfigError
from bus.events import RunPlanned
from services.config import RunConfig
from services.config_file import make_config
from services.devices import Machine, assign_devices
from services.entry import code_of
from services.plan import plan_run
from services.planned import config_of, engine_config

TWO_CORES = Machine((0, 1))


def config(**sections: object) -> RunConfig:
    return make_config({"async_training": {"total_steps": 10}} | sections, "test")


def planned(machine: Machine = TWO_CORES, **sections: object) -> RunPlanned:
    return plan_run(config(**sections), "r1", machine)


def refusal(machine: Machine = TWO_CORES, **sections: object) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(machine, **sections)
    return str(caught.value)


def test_the_totals_follow_from_the_settings() -> None:
    plan = planned(async_training={"total_steps": 7, "ppo_mini_batch_size": 4, "require_batches": 3, "trigger_parameter_sync_step": 2})
    assert (plan.total_steps, plan.required_samples, plan.cycle_samples, plan.num_prompts) == (7, 12, 24, None)


@pytest.mark.parametrize(
    ("tail", "steps"),
    [("train", 3), ("drop", 2)],
)
def test_steps_are_as_many_as_the_prompts_last(tail: str, steps: int) -> None:
    plan = planned(async_training={"num_prompts": 5, "total_epochs": 2, "ppo_mini_batch_size": 4, "tail": tail})
    assert (plan.num_prompts, plan.total_steps) == (10, steps)


@pytest.mark.parametrize(
    ("async_training", "words"),
    [
        ({}, "the run would have no end"),
        ({"total_steps": 5, "total_epochs": 2}, "total_epochs is 2 and async_training.num_prompts is not set"),
        ({"num_prompts": 3, "ppo_mini_batch_size": 4, "tail": "drop"}, "3 prompts are fewer than the 4 samples"),
    ],
)
def test_a_run_without_an_end_or_a_step_is_refused(async_training: dict[str, object], words: str) -> None:
    assert words in refusal(async_training=async_training)


def test_a_run_without_replicas_is_refused_with_both_values() -> None:
    assert "replicas.standalone is 0 and replicas.hybrid is 0" in refusal(replicas={"standalone": 0, "hybrid": 0})


def test_a_plan_holds_its_configuration_and_the_same_plan_follows_from_that() -> None:
    plan = planned(policy={"name": "fixed_ratio", "params": {"deactivate_ratio": 0.6}}, rollout={"temperature": 0.8})
    assert plan_run(config_of(plan), "r1", TWO_CORES) == plan


def test_a_plan_of_another_machine_keeps_its_devices_when_it_is_read() -> None:
    plan = planned(Machine(tuple(range(8))))
    assert config_of(plan).devices == plan.devices


def test_on_two_cores_the_trainer_and_the_hybrid_share_one_and_the_standalone_has_the_other() -> None:
    devices = planned().devices
    assert (devices["replica:s0"], devices["trainer"], devices["replica:h0"]) == ("0", "1", "1")
    assert devices["controller"] == "0,1"


@pytest.mark.parametrize(
    ("cores", "standalone", "hybrid", "wanted"),
    [
        ((5,), 1, 1, {"trainer": "5", "replica:s0": "5", "replica:h0": "5"}),
        ((0, 1), 0, 1, {"trainer": "0,1", "replica:h0": "0,1"}),
        ((0, 1, 2, 3), 1, 2, {"trainer": "2,3", "replica:s0": "0,1", "replica:h0": "2", "replica:h1": "3"}),
        ((0, 1, 2, 3), 2, 1, {"trainer": "2,3", "replica:s0": "0", "replica:s1": "1", "replica:h0": "2,3"}),
        ((0, 1, 2), 3, 0, {"trainer": "1,2", "replica:s0": "0", "replica:s1": "0", "replica:s2": "0"}),
    ],
)
def test_cores_are_shared_out(cores: tuple[int, ...], standalone: int, hybrid: int, wanted: dict[str, str]) -> None:
    devices = assign_devices(config(replicas={"standalone": standalone, "hybrid": hybrid}), Machine(cores))
    assert {service: device for service, device in devices.items() if service == "trainer" or ":" in service} == wanted


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"trainer": [1, 2]}, "devices.trainer is 1,2: 2 is not there, this machine has the cores 0, 1"),
        ({"trainer": "cuda:0"}, "this machine has 0 GPUs"),
        ({"trainr": [0]}, "devices.trainr: there is no such service"),
        ({"replica:s1": [0]}, "devices.replica:s1: there is no such service"),
    ],
)
def test_devices_that_are_not_there_are_refused(devices: dict[str, object], words: str) -> None:
    assert words in refusal(devices=devices)


@pytest.mark.parametrize("devices", [{"trainer": []}, {"trainer": "first"}, {"trainer": [-1]}, "some", 3])
def test_devices_that_are_none_are_refused(devices: object) -> None:
    with pytest.raises(ConfigError, match="devices"):
        config(devices=devices)


def test_services_that_are_not_named_are_not_pinned() -> None:
    assert planned(devices={"trainer": [1]}).devices == {"trainer": "1"}
    assert planned(devices="unpinned").devices == {}


def test_gpus_are_assigned_and_must_suffice() -> None:
    cuda: dict[str, object] = {"actor": {"device": "cuda"}}
    assert planned(Machine((0,), gpus=2), **cuda).devices == {"trainer": "cuda:0", "replica:s0": "cuda:1", "replica:h0": "cuda:0"}
    assert "that takes 2 GPUs, this machine has 1" in refusal(Machine((0,), gpus=1), **cuda)


def test_each_rank_of_the_trainer_has_a_gpu_which_hybrid_replicas_share() -> None:
    settings: dict[str, object] = {"actor": {"device": "cuda", "ranks": 2}, "replicas": {"standalone": 1, "hybrid": 2}}
    assert planned(Machine((0,), gpus=3), **settings).devices == {
        "trainer": "cuda:0,cuda:1", "replica:s0": "cuda:2", "replica:h0": "cuda:0", "replica:h1": "cuda:1",
    }  # fmt: skip
    words = refusal(Machine((0,), gpus=2), **settings)
    assert "actor.ranks 2 with 1 standalone replicas: that takes 3 GPUs, this machine has 2" in words


def test_ranks_share_out_the_trainers_cores_and_their_threads() -> None:
    settings: dict[str, object] = {"actor": {"ranks": 2}, "replicas": {"standalone": 0, "hybrid": 1}}
    plan = planned(Machine((0, 1, 2, 3)), **settings)
    assert plan.devices["trainer"] == "0,1,2,3"
    assert config_of(plan).actor.num_threads == 2
    assert config_of(planned(Machine((0,)), **settings)).actor.num_threads == 1


def test_a_run_without_a_model_has_nothing_that_ranks_could_share_out() -> None:
    words = refusal(Machine((0, 1)), actor={"ranks": 2}, model={"path": "scripted"}, rollout={"engine": "scripted"})
    assert "actor.ranks is 2 and model.path is scripted: there is no model to share out" in words


def test_c30_shares_of_one_devices_memory_are_checked_together() -> None:
    one_gpu: dict[str, object] = {"trainer": "cuda:0", "replica:s0": "cuda:0", "replica:h0": "cuda:0"}
    words = refusal(Machine((0,), gpus=1), devices=one_gpu)
    assert "cuda:0 would have 1.4 of its memory taken (trainer 0.1 + replica:s0 0.8 + replica:h0 0.5)" in words
    fitting = {"gpu_memory_utilization": 0.45, "standalone_gpu_memory_utilization": 0.4}
    assert planned(Machine((0,), gpus=1), devices=one_gpu, rollout=fitting).devices == one_gpu


def test_the_tasks_lengths_and_stop_tokens_are_the_defaults() -> None:
    from services.tasks import get_task

    task, plan = get_task("sorting"), planned()
    assert (plan.max_prompt_length, plan.max_response_length) == (task.max_prompt_length, task.max_response_length)
    assert config_of(plan).rollout.sampling().stop_token_ids == (task.special.eos,)


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        ({"max_prompt_length": 3}, "rollout.max_prompt_length is 3, prompts of task sorting have up to"),
        ({"max_response_length": 5000}, "the built-in model for task sorting has room for"),
    ],
)
def test_lengths_that_do_not_fit_the_task_are_refused(rollout: dict[str, object], words: str) -> None:
    assert words in refusal(rollout=rollout)


def test_the_trainer_has_as_many_threads_as_cores_unless_set() -> None:
    four = Machine((0, 1, 2, 3))
    assert config_of(planned(four)).actor.num_threads == 2
    assert config_of(planned(four, actor={"num_threads": 1})).actor.num_threads == 1
    assert planned(four).environment["threads"] == 2


@pytest.mark.parametrize(("device", "action"), [("cpu", "stop"), ("cuda", "republish")])
def test_a_diverged_redo_stops_on_cpu_and_is_republished_on_cuda(device: str, action: str) -> None:
    assert planned(Machine((0,), gpus=2), actor={"device": device}).on_redo_diverged == action


def test_an_unknown_policy_or_setting_of_it_is_refused() -> None:
    assert "did you mean 'default'?" in refusal(policy={"name": "defalt"})
    assert "did you mean 'deactivate_ratio'?" in refusal(policy={"params": {"ratio": 1}})


def test_the_engine_gets_its_numbers_from_the_plan_and_further_ones_by_name() -> None:
    settings = config(rollout={"max_running_requests": 7, "engine_kwargs": {"admit_requests": 2}})
    engine = engine_config(settings, plan_run(settings, "r1", TWO_CORES))
    assert (engine.max_running_requests, engine.admit_requests) == (7, 2)


def test_vllm_gets_as_it_is_what_is_no_setting_of_ours() -> None:
    kwargs = {"pause_timeout_s": 3, "prefix_cache": "salt", "block_size": 32}
    settings = config(rollout={"engine": "vllm", "engine_kwargs": kwargs})
    engine = engine_config(settings, plan_run(settings, "r1", TWO_CORES))
    assert (engine.kind, engine.pause_timeout_s, engine.vllm.prefix_cache, engine.vllm.kwargs) == ("vllm", 3, "salt", {"block_size": 32})


def test_answers_are_kept_over_updates_only_where_they_may_be_of_several_versions_and_their_caches_stay() -> None:
    assert planned().weight_update_mode == "abort"
    kept: dict[str, object] = {"engine": "vllm", "weight_update_mode": "keep"}
    assert planned(rollout=kept).weight_update_mode == "keep"
    assert "set weight_update_mode to abort, or partial_rollout to true" in refusal(rollout=kept | {"partial_rollout": False})
    assert "leave prefix_cache out" in refusal(rollout=kept | {"engine_kwargs": {"prefix_cache": "reset"}})
    assert planned(rollout=kept | {"engine_kwargs": {"prefix_cache": "salt"}}).weight_update_mode == "keep"


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"admit_request": 2}, "did you mean rollout.engine_kwargs.admit_requests?"),
        ({"max_model_len": 2}, "is worked out from other settings"),
        ({"admit_requests": 0}, "admit_requests"),
    ],
)
def test_an_unknown_setting_of_the_engine_is_refused(kwargs: dict[str, object], words: str) -> None:
    assert words in refusal(rollout={"engine_kwargs": kwargs})


def test_an_engine_that_needs_a_model_is_refused_without_one() -> None:
    assert "without a model the engine must be scripted" in refusal(model={"path": "scripted"})


def test_an_evaluation_is_planned_with_its_prompts_answers_and_limit() -> None:
    evaluation = {"every_versions": 3, "before_train": True, "n": 2, "temperature": 0.7, "eval_timeout_s": 20}
    plan = planned(evaluation=evaluation, data={"val_prompts": 9})
    assert (plan.num_validation, plan.eval_every_versions, plan.eval_before_train, plan.eval_n, plan.eval_timeout_s) == (9, 3, True, 2, 20)
    assert config_of(plan).evaluation.sampling((5,)).temperature == 0.7
    assert (planned().eval_every_versions, planned().eval_before_train) == (0, False)


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"every_versions": 2}, "evaluation.every_versions is 2 and there are no validation prompts: set data.val_files"),
        ({"before_train": True}, "evaluation.before_train is true and there are no validation prompts"),
    ],
)
def test_an_evaluation_without_prompts_is_refused(evaluation: dict[str, object], words: str) -> None:
    assert words in refusal(evaluation=evaluation, data={"val_prompts": 0})


def test_several_greedy_answers_to_one_prompt_are_refused() -> None:
    assert "evaluation.n is 4 and evaluation.temperature 0: all answers would be the same" in refusal(evaluation={"n": 4})


def test_a_policy_of_the_users_is_planned_with_the_text_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    text = (
        "from policies.base import PolicyBase, keep\n\n\nclass Mine(PolicyBase):\n    def verdict(self, view):\n        return keep('x')\n"
    )
    path.write_text(text)
    plan = planned(policy={"name": f"{path}:Mine"})
    assert (plan.policy, plan.policy_source) == (f"{path}:Mine", text)
    path.unlink()
    assert code_of("policy", plan.policy, plan.policy_source) != code_of("policy", "default")
    assert "mine.py cannot be read: No such file" in refusal(policy={"name": f"{path}:Mine"})


def test_a_policy_that_could_not_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import time\n")
    assert f"{path}, line 1: imports time" in refusal(policy={"name": f"{path}:Mine"})
    assert planned().policy_source == ""


def test_with_vllm_the_built_in_model_has_heads_that_its_kernels_take_and_engines_have_longer_to_start() -> None:
    plan = config_of(planned(rollout={"engine": "vllm"}))
    shape = plan.model.shape
    assert (shape.hidden_size, shape.num_heads, shape.num_kv_heads) == (96, 3, 1)
    assert plan.deadlines.start_s == 900
    assert config_of(planned(rollout={"engine": "vllm"}, deadlines={"start_s": 60})).deadlines.start_s == 60
    assert config_of(planned(rollout={"engine": "vllm"}, model={"shape": {"hidden_size": 320}})).model.shape.num_heads is None
    other = config_of(planned())
    assert (other.model.shape.hidden_size, other.deadlines.start_s) == (None, 300)


def test_a_built_in_model_that_vllm_has_no_kernels_for_is_refused_with_its_numbers() -> None:
    words = refusal(rollout={"engine": "vllm"}, model={"shape": {"hidden_size": 80}})
    assert "model.shape.hidden_size 80 in 4 heads (model.shape.num_heads) makes heads of 20 numbers" in words
