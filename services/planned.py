"""What is read out of a run's plan: the configuration that it was worked out from, and what a replica's engine is set to."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bus.errors import ConfigError
from bus.events import RunPlanned
from policies.registry import nearest
from services.config import RunConfig
from services.config_file import make_config
from services.engines.config import EngineConfig, VllmConfig

OWN_ENGINE_SETTINGS = ("kind", "max_running_requests", "max_model_len", "vllm", "memory_share", "kwargs")
"""Settings of the engine that are worked out here or in the replica."""
OF_EMBEDDED_ENGINE = ("admit_requests", "admit_wait_steps")
"""Settings that mean nothing to vLLM."""


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
