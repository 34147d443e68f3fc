"""Works out every default of a configuration that depends on other settings, on the data, or on the machine."""

from __future__ import annotations

import math

from bus.errors import ConfigError
from bus.events import Deadlines
from services.config import BUILTIN, RunConfig
from services.data.planning import DataPlan, with_absolute_paths
from services.devices import Machine, assign_devices, check_memory, check_parallel, cores_of, is_cuda
from services.learner.config import LearnerConfig
from services.precision import expected_difference
from services.weights.settings import wire_dtype

CLUSTER_KILL_S = 120.0
"""Default of deadlines.kill_s on a cluster: Ray says that a node is dead after about a minute without an answer from it."""


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


def required_samples(config: RunConfig) -> int:
    """Of one step."""
    return config.async_training.ppo_mini_batch_size * config.async_training.require_batches


def num_prompts(config: RunConfig, data: DataPlan) -> int | None:
    """In all data epochs; None: the data is gone through as often as the steps need it."""
    epochs = _total_epochs(config)
    return None if data.num_prompts is None or epochs is None else data.num_prompts * epochs


def _total_epochs(config: RunConfig) -> int | None:
    """As configured; else once, unless it is said how many steps are to be done and not with how many prompts."""
    timing = config.async_training
    return timing.total_epochs or (1 if timing.total_steps is None or timing.num_prompts is not None else None)


def _total_steps(config: RunConfig, data: DataPlan) -> int:
    """As configured, else as many as the prompts last."""
    timing, available, required = config.async_training, num_prompts(config, data), required_samples(config)
    if timing.total_steps is not None:
        return timing.total_steps
    assert available is not None
    steps = math.ceil(available / required) if timing.tail == "train" else available // required
    if steps == 0:
        raise ConfigError(f"{available} prompts are fewer than the {required} samples of one step, and async_training.tail is drop")
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
