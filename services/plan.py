"""Works a configuration out into the run's plan, its log's first entry: totals, seeds, devices, and what else bits depend on.

RunConfig ──plan_run──▶ RunPlanned ──▶ log position 1 ──▶ every service        nothing of the configuration is read but from there
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from bus.errors import ConfigError
from bus.events import Deadlines, RunPlanned
from bus.settings import can_keep_answers, keeps_version_lag
from policies.registry import nearest
from services.config import BUILTIN, SCRIPTED, AsyncTrainingConfig, RolloutConfig, RunConfig
from services.config_file import make_config
from services.data.planning import DataPlan, plan_data, with_absolute_paths
from services.devices import Machine, assign_devices, check_memory, check_parallel, cores_of, is_cuda, this_machine
from services.engine_defaults import check_heads
from services.engines.config import EngineConfig, VllmConfig
from services.learner.config import LearnerConfig
from services.learner.environment import environment
from services.monitor.trackers import check_trackers
from services.policy.making import make_policy
from services.policy.source import read_source
from services.precision import engine_environment, expected_difference
from services.transfer.choice import check_transport
from services.weights.settings import wire_dtype

OWN_ENGINE_SETTINGS = ("kind", "max_running_requests", "max_model_len", "vllm", "memory_share", "kwargs")
"""Settings of the engine that are worked out here or in the replica."""
CLUSTER_KILL_S = 120.0
"""Default of deadlines.kill_s on a cluster: Ray says that a node is dead after about a minute without an answer from it."""
OF_EMBEDDED_ENGINE = ("admit_requests", "admit_wait_steps")
"""Settings that mean nothing to vLLM."""


def plan_run(config: RunConfig, run: str, machine: Machine | None = None, data: DataPlan | None = None) -> RunPlanned:
    """The plan of a run. Raises ConfigError when the parts of the configuration do not fit together, or not this machine.

    `data`: what `plan_data` found, if that was asked before.
    """
    _check(config)
    policy_source = read_source(config.policy.name)
    make_policy(config.policy.name, config.policy.params, policy_source)  # raises for one that could not start
    data = data or plan_data(config)
    config = resolve(config, machine or this_machine(), data)
    timing, rollout, replicas = config.async_training, config.rollout, config.replicas
    assert rollout.max_prompt_length is not None
    assert rollout.max_response_length is not None
    assert timing.total_steps is not None
    assert timing.on_redo_diverged != "auto"
    assert isinstance(config.devices, dict)
    check_transport(config.weights.transport, rollout.engine, config.devices)
    plan = RunPlanned(
        run=run,
        seed=config.data.seed,
        total_steps=timing.total_steps,
        required_samples=_required_samples(config),
        trigger_parameter_sync_step=timing.trigger_parameter_sync_step,
        staleness_threshold=timing.staleness_threshold,
        max_version_lag=timing.max_version_lag,
        on_version_lag=timing.on_version_lag,
        max_logprob_diff=timing.max_logprob_diff or 0.0,
        rollout_n=rollout.n,
        num_prompts=_num_prompts(config, data),
        num_validation=data.num_validation,
        eval_every_versions=config.evaluation.every_versions,
        eval_before_train=config.evaluation.before_train,
        eval_n=config.evaluation.n,
        eval_timeout_s=config.evaluation.eval_timeout_s,
        max_prompt_length=rollout.max_prompt_length,
        max_response_length=rollout.max_response_length,
        partial_rollout=rollout.partial_rollout,
        weight_update_mode=rollout.weight_update_mode,
        enable_rebalance=timing.enable_rebalance,
        use_dynamic_resource_scheduling=timing.use_dynamic_resource_scheduling,
        standalone=replicas.standalone_names,
        hybrid=replicas.hybrid_names,
        max_running_requests=rollout.max_running_requests,
        max_attempts=rollout.max_attempts,
        max_failed_samples_in_a_row=rollout.max_failed_samples_in_a_row,
        max_filtered_samples_in_a_row=rollout.max_filtered_samples_in_a_row,
        tail=timing.tail,
        max_tokens_per_micro_batch=config.actor.max_tokens_per_micro_batch,
        checkpoint_every_versions=timing.checkpoint_every_versions,
        on_redo_diverged=timing.on_redo_diverged,
        max_lent_s=timing.max_lent_s,
        deadlines=config.deadlines,
        policy=config.policy.name,
        policy_params=config.policy.params,
        policy_source=policy_source,
        devices=config.devices,
        config=json.dumps(config.resolved(), sort_keys=True),
        environment=environment(config.actor) | data.environment | engine_environment(config),
    )
    check_evaluation(plan, config.evaluation.temperature)
    engine_config(config, plan)  # raises for settings that no replica could start with
    return plan


def resolve(config: RunConfig, machine: Machine, data: DataPlan) -> RunConfig:
    """The configuration with every default that depends on others, or on the machine, worked out; resolving it again changes nothing."""
    devices = assign_devices(config, machine)
    check_parallel(config, devices)
    check_memory(config, devices)
    most = config.async_training.max_logprob_diff
    timing = config.async_training.model_copy(
        update={
            "total_steps": _total_steps(config, data),
            "total_epochs": _total_epochs(config),
            "on_redo_diverged": _on_redo_diverged(config),
            "max_logprob_diff": expected_difference(config, wire_dtype(config)) if most is None else most,
        }
    )
    lengths = _lengths(config, data)
    trainer = devices.get("trainer", "")
    counted = config.cluster.cpus.rank if machine.nodes else 1.0
    threads = config.actor.num_threads or _cores_of_a_rank(trainer, config.actor.ranks, max(1, int(counted)))
    return config.model_copy(
        update={
            "rollout": config.rollout.model_copy(
                update={**lengths, "stop_token_ids": config.rollout.stop_token_ids or data.stop_token_ids}
            ),
            "data": with_absolute_paths(config.data),
            "actor": _actor(config, threads, lengths["max_response_length"]),
            "async_training": timing,
            "devices": devices,
            "deadlines": _deadlines(config, machine),
            "weights": config.weights.model_copy(update={"dtype": wire_dtype(config)}),
        }
    )


def _deadlines(config: RunConfig, machine: Machine) -> Deadlines:
    """On a cluster there is time to hear that a node is gone, unless the user said how much."""
    given = config.deadlines
    return given.model_copy(update={"kill_s": CLUSTER_KILL_S}) if machine.nodes and "kill_s" not in given.model_fields_set else given


def _cores_of_a_rank(trainer: str, ranks: int, unbound: int) -> int:
    """Cores of the trainer's device that one of its ranks has; 1 on a GPU, `unbound` when it is bound to none."""
    return 1 if is_cuda(trainer) else max(1, len(cores_of(trainer)) // ranks) if trainer else unbound


def config_of(plan: RunPlanned) -> RunConfig:
    """The configuration that a plan was worked out from. Raises ConfigError when this version does not understand it."""
    try:
        settings = json.loads(plan.config)
    except ValueError as error:
        raise ConfigError(f"the plan of run {plan.run} has a configuration that is no JSON: {error}") from error
    return make_config(settings, f"the plan of run {plan.run}")


def engine_config(config: RunConfig, plan: RunPlanned) -> EngineConfig:
    """What a replica's engine is set to. Raises ConfigError."""
    kwargs = config.rollout.engine_kwargs
    vllm: dict[str, object] = {}
    for name in kwargs:
        if name in OWN_ENGINE_SETTINGS:
            raise ConfigError(f"rollout.engine_kwargs.{name} is worked out from other settings of rollout: leave it out")
        if config.rollout.engine == "vllm" and name in OF_EMBEDDED_ENGINE:
            raise ConfigError(f"rollout.engine_kwargs.{name} is of the embedded engine: vLLM admits requests at every token; leave it out")
        if config.rollout.engine == "vllm" and name not in EngineConfig.model_fields:
            vllm[name] = kwargs[name]
        elif name not in EngineConfig.model_fields:
            guess = nearest(name, tuple(known for known in EngineConfig.model_fields if known not in OWN_ENGINE_SETTINGS))
            raise ConfigError(f"rollout.engine_kwargs.{name} is no setting: did you mean rollout.engine_kwargs.{guess}?")
    own: dict[str, object] = {
        "kind": config.rollout.engine,
        "max_running_requests": plan.max_running_requests,
        "max_model_len": max(8, plan.max_prompt_length + plan.max_response_length),
        "vllm": _vllm_settings(vllm),
    }
    try:
        engine = EngineConfig.model_validate({name: value for name, value in kwargs.items() if name not in vllm} | own)
    except ValueError as error:
        raise ConfigError(f"rollout.engine_kwargs: {error}") from error
    if plan.weight_update_mode == "keep" and engine.vllm.prefix_cache == "reset":
        raise ConfigError(
            "rollout.engine_kwargs.prefix_cache is reset and rollout.weight_update_mode is keep: what answers in flight have cached "
            "cannot be reset under them; leave prefix_cache out, or set it to salt or off"
        )
    return engine


def _vllm_settings(given: Mapping[str, object]) -> dict[str, object]:
    """What is a setting of ours, and the rest, which vLLM gets as it is."""
    ours = {name: value for name, value in given.items() if name in VllmConfig.model_fields}
    return ours | {"kwargs": {name: value for name, value in given.items() if name not in ours}}


def _check(config: RunConfig) -> None:
    replicas, timing = config.replicas, config.async_training
    if replicas.standalone + replicas.hybrid == 0:
        raise ConfigError("replicas.standalone is 0 and replicas.hybrid is 0: nobody could generate; set one of them to at least 1")
    endless = timing.num_prompts is None and not config.data.train_files
    if endless and (timing.total_epochs or 1) > 1:
        raise ConfigError(
            f"async_training.total_epochs is {timing.total_epochs} and async_training.num_prompts is not set: "
            "say how many prompts one epoch has"
        )
    if endless and timing.total_steps is None:
        raise ConfigError("neither async_training.total_steps nor async_training.num_prompts is set: the run would have no end")
    check_version_lag(timing)
    check_update_mode(config.rollout)
    if config.model.path == SCRIPTED and config.rollout.engine != SCRIPTED:
        raise ConfigError(
            f"model.path is {SCRIPTED} and rollout.engine is {config.rollout.engine}: without a model the engine must be scripted, too"
        )
    if config.rollout.engine == "vllm" and config.model.path == BUILTIN and config.actor.device == "cpu":
        check_heads(config.model.shape.hidden_size, config.model.shape.num_heads)
    if config.model.path == SCRIPTED and config.actor.ranks > 1:
        raise ConfigError(f"actor.ranks is {config.actor.ranks} and model.path is {SCRIPTED}: there is no model to share out")
    scripted = config.scripted
    if scripted.shortest_answer > scripted.longest_answer:
        raise ConfigError(
            f"scripted.shortest_answer is {scripted.shortest_answer}, which is over scripted.longest_answer, {scripted.longest_answer}"
        )
    check_trackers(config.monitor)


def check_version_lag(timing: AsyncTrainingConfig) -> None:
    """Raises ConfigError for a limit that could not be kept by waiting."""
    lag, threshold = timing.max_version_lag, timing.staleness_threshold
    if lag is not None and not keeps_version_lag(lag, timing.on_version_lag, threshold):
        raise ConfigError(
            f"async_training.max_version_lag is {lag} and staleness_threshold is {threshold}: more samples may be outstanding than "
            f"{lag + 1} cycles can train, so waiting would not keep the limit; set max_version_lag to {math.ceil(threshold)}, "
            f"staleness_threshold to {lag}, or on_version_lag to drop"
        )


def check_update_mode(rollout: RolloutConfig) -> None:
    """Raises ConfigError for answers that are to go on with other weights, and never to hold tokens of several."""
    if not can_keep_answers(rollout.weight_update_mode, rollout.partial_rollout):
        raise ConfigError(
            "rollout.weight_update_mode is keep and rollout.partial_rollout is false: answers would go on with other weights, "
            "and are to start over rather than hold tokens of several versions; set weight_update_mode to abort, or partial_rollout to true"
        )


def check_evaluation(plan: RunPlanned, temperature: float) -> None:
    """Raises ConfigError for evaluations of nothing, or of the same answer several times."""
    if (plan.eval_every_versions or plan.eval_before_train) and plan.num_validation == 0:
        what = f"every_versions is {plan.eval_every_versions}" if plan.eval_every_versions else "before_train is true"
        raise ConfigError(f"evaluation.{what} and there are no validation prompts: set data.val_files, or data.val_prompts over 0")
    if plan.eval_n > 1 and temperature == 0:
        raise ConfigError(
            f"evaluation.n is {plan.eval_n} and evaluation.temperature 0: all answers would be the same; "
            "set evaluation.n to 1, or a temperature over 0"
        )


def _required_samples(config: RunConfig) -> int:
    return config.async_training.ppo_mini_batch_size * config.async_training.require_batches


def _num_prompts(config: RunConfig, data: DataPlan) -> int | None:
    """All data epochs counted; None: the data is gone through as often as the steps need it."""
    epochs = _total_epochs(config)
    return None if data.num_prompts is None or epochs is None else data.num_prompts * epochs


def _total_epochs(config: RunConfig) -> int | None:
    """As configured; else once, unless it is said how many steps are to be done and not with how many prompts."""
    timing = config.async_training
    return timing.total_epochs or (1 if timing.total_steps is None or timing.num_prompts is not None else None)


def _total_steps(config: RunConfig, data: DataPlan) -> int:
    """As configured, else as many as the prompts last."""
    timing, num_prompts, required = config.async_training, _num_prompts(config, data), _required_samples(config)
    if timing.total_steps is not None:
        return timing.total_steps
    assert num_prompts is not None
    steps = math.ceil(num_prompts / required) if timing.tail == "train" else num_prompts // required
    if steps == 0:
        raise ConfigError(f"{num_prompts} prompts are fewer than the {required} samples of one step, and async_training.tail is drop")
    return steps


def _on_redo_diverged(config: RunConfig) -> str:
    chosen = config.async_training.on_redo_diverged
    return chosen if chosen != "auto" else "stop" if config.actor.device == "cpu" else "republish"


def _actor(config: RunConfig, threads: int, max_response_length: int) -> LearnerConfig:
    buffer_len = config.actor.overlong_buffer_len
    if buffer_len is not None and buffer_len > max_response_length:
        raise ConfigError(
            f"actor.overlong_buffer_len is {buffer_len}, answers have at most {max_response_length} tokens "
            "(rollout.max_response_length): set it to at most that"
        )
    return config.actor.model_copy(update={"num_threads": threads, "max_response_length": max_response_length})


def _lengths(config: RunConfig, data: DataPlan) -> dict[str, int]:
    """Lengths in tokens: those of the data, unless others are set."""
    prompt = config.rollout.max_prompt_length or data.max_prompt_length
    response = config.rollout.max_response_length or data.max_response_length
    if prompt < data.longest_prompt:
        raise ConfigError(f"rollout.max_prompt_length is {prompt}, prompts of {data.source} have up to {data.longest_prompt} tokens")
    if data.room is not None and prompt + response > data.room:
        builtin = config.model.path == BUILTIN
        raise ConfigError(
            f"rollout.max_prompt_length + rollout.max_response_length is {prompt} + {response}, "
            f"{f'the built-in model for {data.source}' if builtin else f'the model in {config.model.path}'} "
            f"has room for {data.room} tokens: {'leave them unset' if builtin else 'set them to less'}"
        )
    return {"max_prompt_length": prompt, "max_response_length": response}
