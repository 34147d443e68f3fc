"""Defaults that are others with vLLM: what a configuration leaves open is filled in before it is validated, so that all readers see it."""

from __future__ import annotations

from collections.abc import Mapping

from bus.errors import ConfigError

VLLM = "vllm"
VLLM_START_S = 900.0
"""It starts two or three interpreters, each of which imports torch for seconds, and on GPUs it compiles a large model for minutes."""
VLLM_SHAPE = {"hidden_size": 96, "num_heads": 3, "num_kv_heads": 1}
"""Of the built-in model: as wide as for other engines, but with heads that vLLM's kernels for CPUs take."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Those of vLLM 0.32 (`vllm/v1/attention/backends/cpu_attn.py`)."""


def with_engine_defaults(data: Mapping[str, object], builtin: str) -> dict[str, object]:
    """The sections of a configuration, completed. `builtin`: the `model.path` of the model that is made on the spot."""
    rollout = data.get("rollout")
    if not isinstance(rollout, Mapping) or rollout.get("engine") != VLLM:
        return dict(data)
    deadlines, model = data.get("deadlines") or {}, data.get("model") or {}
    filled: dict[str, object] = {}
    if isinstance(deadlines, Mapping):
        filled["deadlines"] = {"start_s": VLLM_START_S} | dict(deadlines)
    if isinstance(model, Mapping) and model.get("path", builtin) == builtin:
        shape = model.get("shape") or {}
        if isinstance(shape, Mapping) and not any(shape.get(name) for name in VLLM_SHAPE):
            filled["model"] = dict(model) | {"shape": dict(shape) | VLLM_SHAPE}
    return dict(data) | filled


def check_heads(hidden_size: int | None, num_heads: int | None) -> None:
    """Raises ConfigError for a built-in model that vLLM's kernels for CPUs do not take; what is unset is as with other engines."""
    width, heads = hidden_size or 96, num_heads or 4
    if width % heads == 0 and width // heads not in CPU_HEAD_SIZES:
        raise ConfigError(
            f"model.shape.hidden_size {width} in {heads} heads (model.shape.num_heads) makes heads of {width // heads} numbers, and vLLM's "
            f"kernels for CPUs take {', '.join(map(str, CPU_HEAD_SIZES))}: set others, or neither"
        )
