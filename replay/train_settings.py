"""`replay train --set actor.lr=…`: which settings of the learner may be others than in the run, and why the rest may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import yaml
from pydantic import ValidationError

from bus.errors import ConfigError
from policies.registry import nearest
from services.learner.config import LearnerConfig

SECTION = "actor"

FIXED = {
    "model": "the recorded samples are those of the recorded model",
    "temperature": "the recorded answers were sampled at the recorded temperature",
    "max_response_length": "the recorded answers are as long as they are",
    "max_tokens_per_micro_batch": "how each batch was split is recorded with it",
}
"""Settings of the learner that belong to the samples."""

ELSEWHERE = {
    "data": "the samples are the recorded ones",
    "rollout": "the samples are the recorded ones",
    "model": "the recorded samples are those of the recorded model",
    "async_training": "which samples a step took, and when weights were published, is recorded",
    "scripted": "a scripted learner has no settings",
}
"""Other sections that somebody might try, and why it cannot be."""


def changed(config: LearnerConfig, overrides: Sequence[str]) -> LearnerConfig:
    """The settings with overrides of the form `actor.name=value`, the value in YAML. Raises ConfigError."""
    values = dict(_parse(override) for override in overrides)
    try:
        return LearnerConfig.model_validate(config.model_dump() | values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join([SECTION, *map(str, first["loc"])])
        context = first.get("ctx", {})
        message = str(context["error"]) if first["type"] == "value_error" else f"{name} is {first['input']!r}: {first['msg']}"
        raise ConfigError(f"--set: {message}") from error


def _parse(override: str) -> tuple[str, object]:
    path, equals, text = override.partition("=")
    section, _, name = path.strip().partition(".")
    if not equals or not section or not name:
        raise ConfigError(f"--set {override}: it must be of the form {SECTION}.name=value")
    if section != SECTION:
        why = ELSEWHERE.get(section, "it has no effect on how the recorded samples are trained")
        raise ConfigError(f"--set {override}: {why}; only settings of the learner can be changed here, such as {SECTION}.lr")
    if name in FIXED:
        raise ConfigError(f"--set {override}: {FIXED[name]}; change it in the configuration of a new run")
    if name not in LearnerConfig.model_fields:
        raise ConfigError(
            f"--set {override}: {path} is no setting: did you mean {SECTION}.{nearest(name, tuple(LearnerConfig.model_fields))}?"
        )
    try:
        return name, cast(object, yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override} is no YAML: {error}") from error
