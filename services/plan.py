"""Works a configuration out into the run's plan, its log's first entry: totals, seeds, devices, and what else bits depend on.

RunConfig ──plan_run──▶ RunPlanned ──▶ log position 1 ──▶ every service        nothing of the configuration is read but from there
"""

from __future__ import annotations

import json
import math
import platform
from importlib import metadata

from bus.errors import ConfigError
from bus.events import RunPlanned, Value
from policies.registry import create, nearest
from services.config import BUILTIN, SCRIPTED, RunConfig
from services.config_file import make_config
from services.devices import Machine, assign_devices, check_memory, is_cuda, this_machine
from services.engines.config import EngineConfig
from services.tasks import get_task
from services.tasks.protocol import Task

MICRO_BATCH_RULE = "tokens-1"
"""Which rule of `services.learner.micro_batches` split the batches; changes with it."""
OWN_ENGINE_SETTINGS = ("kind", "max_running_requests", "max_model_len")
"""Settings of the engine that are worked out here."""


def plan_run(config: RunConfig, run: str, machine: Machine | None = None) -> RunPlanned:
    """The plan of a run. Raises ConfigError when the parts of the configuration do not fit together, or not this machine."""
    config = resolve(config, machine or this_machine())
    timing, rollout, replicas = config.async_training, config.rollout, config.replicas
    assert rollout.max_prompt_length is not None
    assert rollout.max_response_length is not None
    assert timing.total_steps is not None
    assert timing.on_redo_diverged != "auto"
    assert isinstance(config.devices, dict)
    plan = RunPlanned(
        run=run,
        seed=config.data.seed,
        total_steps=timing.total_steps,
        required_samples=_required_samples(config),
        trigger_parameter_sync_step=timing.trigger_parameter_sync_step,
        staleness_threshold=timing.staleness_threshold,
        rollout_n=rollout.n,
        num_prompts=_num_prompts(config),
        max_prompt_length=rollout.max_prompt_length,
        max_response_length=rollout.max_response_length,
        partial_rollout=rollout.partial_rollout,
        enable_rebalance=timing.enable_rebalance,
        use_dynamic_resource_scheduling=timing.use_dynamic_resource_scheduling,
        standalone=replicas.standalone_names,
        hybrid=replicas.hybrid_names,
        max_running_requests=rollout.max_running_requests,
        max_attempts=rollout.max_attempts,
        tail=timing.tail,
        max_tokens_per_micro_batch=config.actor.max_tokens_per_micro_batch,
        checkpoint_every_versions=timing.checkpoint_every_versions,
        on_redo_diverged=timing.on_redo_diverged,
        max_lent_s=timing.max_lent_s,
        deadlines=config.deadlines,
        policy=config.policy.name,
        policy_params=config.policy.params,
        devices=config.devices,
        config=json.dumps(config.resolved(), sort_keys=True),
        environment=environment(config),
    )
    engine_config(config, plan)  # raises for settings that no replica could start with
    return plan


def resolve(config: RunConfig, machine: Machine) -> RunConfig:
    """The configuration with every default that depends on others, or on the machine, worked out; resolving it again changes nothing."""
    _check(config)
    task = get_task(config.data.task)
    devices = assign_devices(config, machine)
    check_memory(config, devices)
    timing = config.async_training.model_copy(
        update={
            "total_steps": _total_steps(config),
            "on_redo_diverged": _on_redo_diverged(config),
        }
    )
    trainer = devices.get("trainer", "")
    threads = config.actor.num_threads or (len(trainer.split(",")) if trainer and not is_cuda(trainer) else 1)
    return config.model_copy(
        update={
            "rollout": config.rollout.model_copy(
                update={**_lengths(config, task), "stop_token_ids": config.rollout.stop_token_ids or (task.special.eos,)}
            ),
            "actor": config.actor.model_copy(update={"num_threads": threads}),
            "async_training": timing,
            "devices": devices,
        }
    )


def config_of(plan: RunPlanned) -> RunConfig:
    """The configuration that a plan was worked out from. Raises ConfigError when this version does not understand it."""
    return make_config(json.loads(plan.config), f"the plan of run {plan.run}")


def engine_config(config: RunConfig, plan: RunPlanned) -> EngineConfig:
    """What a replica's engine is set to. Raises ConfigError."""
    kwargs = config.rollout.engine_kwargs
    for name in kwargs:
        if name in OWN_ENGINE_SETTINGS:
            raise ConfigError(f"rollout.engine_kwargs.{name} is worked out from other settings of rollout: leave it out")
        if name not in EngineConfig.model_fields:
            guess = nearest(name, tuple(known for known in EngineConfig.model_fields if known not in OWN_ENGINE_SETTINGS))
            raise ConfigError(f"rollout.engine_kwargs.{name} is no setting: did you mean rollout.engine_kwargs.{guess}?")
    own: dict[str, Value] = {
        "kind": config.rollout.engine,
        "max_running_requests": plan.max_running_requests,
        "max_model_len": max(8, plan.max_prompt_length + plan.max_response_length),
    }
    try:
        return EngineConfig.model_validate(kwargs | own)
    except ValueError as error:
        raise ConfigError(f"rollout.engine_kwargs: {error}") from error


def environment(config: RunConfig) -> dict[str, Value]:
    """What the bits of a run depend on besides its seeds and settings; looked up without importing it."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": metadata.version("torch"),
        "transformers": metadata.version("transformers"),
        "backend": config.actor.device,
        "threads": config.actor.num_threads,
        "layout": config.actor.layout,
        "attention": config.actor.attention,
        "micro_batch_rule": MICRO_BATCH_RULE,
    }


def _check(config: RunConfig) -> None:
    replicas, timing = config.replicas, config.async_training
    if replicas.standalone + replicas.hybrid == 0:
        raise ConfigError("replicas.standalone is 0 and replicas.hybrid is 0: nobody could generate; set one of them to at least 1")
    if timing.total_epochs > 1 and timing.num_prompts is None:
        raise ConfigError(
            f"async_training.total_epochs is {timing.total_epochs} and async_training.num_prompts is not set: "
            "say how many prompts one epoch has"
        )
    if timing.total_steps is None and timing.num_prompts is None:
        raise ConfigError("neither async_training.total_steps nor async_training.num_prompts is set: the run would have no end")
    if config.model.path == SCRIPTED and config.rollout.engine != SCRIPTED:
        raise ConfigError(
            f"model.path is {SCRIPTED} and rollout.engine is {config.rollout.engine}: without a model the engine must be scripted, too"
        )
    scripted = config.scripted
    if scripted.shortest_answer > scripted.longest_answer:
        raise ConfigError(
            f"scripted.shortest_answer is {scripted.shortest_answer}, which is over scripted.longest_answer, {scripted.longest_answer}"
        )
    create(config.policy.name, config.policy.params)
    get_task(config.data.reward)


def _required_samples(config: RunConfig) -> int:
    return config.async_training.ppo_mini_batch_size * config.async_training.require_batches


def _num_prompts(config: RunConfig) -> int | None:
    timing = config.async_training
    return None if timing.num_prompts is None else timing.num_prompts * timing.total_epochs


def _total_steps(config: RunConfig) -> int:
    """As configured, else as many as the prompts last."""
    timing, num_prompts, required = config.async_training, _num_prompts(config), _required_samples(config)
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


def _lengths(config: RunConfig, task: Task) -> dict[str, int]:
    """Lengths in tokens: the task's, unless others are set."""
    prompt = config.rollout.max_prompt_length or task.max_prompt_length
    response = config.rollout.max_response_length or task.max_response_length
    if prompt < task.max_prompt_length:
        raise ConfigError(f"rollout.max_prompt_length is {prompt}, prompts of task {task.name} have up to {task.max_prompt_length} tokens")
    room = task.max_prompt_length + task.max_response_length
    if config.model.path == BUILTIN and prompt + response > room:
        raise ConfigError(
            f"rollout.max_prompt_length + rollout.max_response_length is {prompt} + {response}, the built-in model for task {task.name} "
            f"has room for {room} tokens: leave them unset"
        )
    return {"max_prompt_length": prompt, "max_response_length": response}
