"""What a configuration means for weights on their way from the trainer to the replicas. Loads no torch."""

from __future__ import annotations

from typing import Literal

from services.config import RunConfig
from services.precision import engine_dtype


def wire_dtype(config: RunConfig) -> Literal["float32", "bfloat16"]:
    """What published weights are rounded to; see `WeightsConfig.dtype`."""
    if config.weights.dtype != "auto":
        return config.weights.dtype
    both = config.actor.dtype == "bfloat16" and engine_dtype(config) == "bfloat16"
    return "bfloat16" if both else "float32"


def published_dtype(config: RunConfig) -> str:
    """What a planned run's trainer rounds to, as `WeightsPublished.dtype`; float32 is what it has. Plans of older versions do not say."""
    return "bfloat16" if config.weights.dtype == "bfloat16" else ""
