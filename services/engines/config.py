"""What can be set about an inference engine. Importing this does not import torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from bus.events import Value


class VllmConfig(BaseModel):
    """What only the vLLM engine has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor_parallel_size: int | None = Field(default=None, ge=1, le=1024)
    """GPUs (on CPUs: processes) that share one replica's model; unset: as many as its device has, on CPUs one."""

    memory_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the device's memory for weights and cache, on GPUs; on CPUs the cache has `kv_cache_memory_bytes` of `kwargs`."""

    prefix_cache: Literal["auto", "reset", "salt", "off"] = "auto"
    """At an update: `reset` empties the cache, and fails if it could not; `salt` makes what older weights cached unreachable for requests
    that start later; `auto` does the second always, and the first whenever nothing is in flight."""

    verify_weights: bool = True
    """Whether each load is followed by checksums of all parameters: equal weights must give equal ones, others different ones."""

    start_timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    """How long the engine may take to start."""

    switch_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """How long it may take to fall asleep, to wake up, or to open, before it counts as failed."""

    update_timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    """How long loading weights may take before it counts as failed."""

    kwargs: dict[str, Value] = {}
    """Anything else that `vllm.AsyncEngineArgs` takes."""


class EngineConfig(BaseModel):
    """One replica's engine. Which model it serves and on which device is not in here: that comes from the run and from the device map."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["embedded", "scripted", "vllm"] = "embedded"
    """`embedded` runs the model in the replica's process; `vllm` in one or more processes of vLLM's, which end with the replica;
    `scripted` computes nothing, for tests and benchmarks."""

    max_running_requests: int = Field(default=64, ge=1, le=1024)
    """Requests that generate at the same time; more wait in the engine's queue. Their cache is allocated as a whole by `wake`."""

    max_model_len: int = Field(default=256, ge=8, le=131_072)
    """Prompt and answer together, in tokens. A request that could grow longer ends with outcome `error`."""

    max_batched_tokens: int = Field(default=8192, ge=8, le=1_048_576)
    """Prompt tokens (with padding) that one forward pass may take. One longer prompt is still taken, alone."""

    admit_requests: int = Field(default=8, ge=1, le=1024)
    """Queued requests start together, this many at a time where possible: each admission costs a forward pass of its own."""

    admit_wait_steps: int = Field(default=8, ge=0, le=1024)
    """But none waits longer for company than this many tokens of the running ones, once there is room for it."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is what the model's folder says, else float32."""

    pause_timeout_s: float = Field(default=30.0, gt=0, le=600)
    """How long `pause` and `close` wait for the token that is being computed before they raise."""

    vllm: VllmConfig = VllmConfig()
    """Of kind `vllm` only."""
