"""What a replica tells vLLM when it starts: arguments, environment, and how a request is to be sampled."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bus.errors import ConfigError
from bus.events import Value
from services.engines.config import EngineConfig
from services.engines.vllm_plugin import MARK

CPU_CACHE_BYTES = 1 << 30
LOGPROBS_MODE = "processed_logprobs"
"""After temperature, top-k and top-p, renormalised: the space of `GenerateOutput.logprobs`, which training takes them to be in."""

OWN = {
    "model": "comes from model.path",
    "dtype": "is dtype of engine_kwargs",
    "max_model_len": "is worked out from the prompt's and the response's length",
    "max_num_seqs": "is rollout.max_running_requests",
    "max_num_batched_tokens": "is max_batched_tokens of engine_kwargs",
    "tensor_parallel_size": "is tensor_parallel_size of engine_kwargs",
    "gpu_memory_utilization": "is rollout.gpu_memory_utilization or rollout.standalone_gpu_memory_utilization",
    "enable_prefix_caching": "is prefix_cache of engine_kwargs",
    "skip_tokenizer_init": "is always true: replicas get and give token ids",
    "load_format": "is always dummy: the weights come from the trainer",
    "generation_config": "is always vllm: sampling is what the run says, never what a model's folder says",
    "weight_transfer_config": "follows from how weights are published",
    "enable_sleep_mode": "is on wherever the device can give its memory back",
    "disable_log_stats": "is on: swingshift has measures of its own",
    "data_parallel_size": "is the number of replicas",
}


def engine_arguments(config: EngineConfig, model_folder: Path, device: str) -> dict[str, Value]:
    """Arguments of `vllm.AsyncEngineArgs`, but for the weight transfer. Raises ConfigError for what must not be set by hand."""
    given = config.vllm.kwargs
    for name in given:
        if name in OWN:
            raise ConfigError(f"rollout.engine_kwargs.{name} cannot be set: it {OWN[name]}")
    if (mode := given.get("logprobs_mode", LOGPROBS_MODE)) != LOGPROBS_MODE:
        raise ConfigError(
            f"rollout.engine_kwargs.logprobs_mode is {mode}: training takes log-probabilities of the distribution that was sampled from, "
            f"which is {LOGPROBS_MODE}; leave it out"
        )
    cpu = not device.startswith("cuda")
    own: dict[str, Value] = {
        "model": str(model_folder),
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_running_requests,
        "max_num_batched_tokens": max(config.max_batched_tokens, config.max_running_requests),
        "tensor_parallel_size": config.vllm.tensor_parallel_size,
        "gpu_memory_utilization": config.vllm.memory_share,
        "enable_prefix_caching": config.vllm.prefix_cache != "off",
        "logprobs_mode": LOGPROBS_MODE,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "generation_config": "vllm",
        "enable_sleep_mode": not cpu,
        "disable_log_stats": True,
    }
    for_cpus: dict[str, Value] = {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES} if cpu else {}
    return for_cpus | given | own


def engine_environment(device: str) -> dict[str, str]:
    """What else vLLM's processes find in their environment on such a device, unless the user has set it."""
    if device.startswith("cuda"):
        return {"VLLM_LOGGING_LEVEL": "WARNING"}
    # There, each sleep and wake is worth a warning to vLLM; and the one function that it compiles takes 20 s of the first generation.
    return {"VLLM_LOGGING_LEVEL": "ERROR", "TORCH_COMPILE_DISABLE": "1"}


@contextmanager
def starting_environment(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """What vLLM's processes inherit; `environment` only where it is not set. All is put back, also what vLLM adds (preloaded libraries)."""
    before = dict(os.environ)
    # `nobind`: threads stay on the replica's cores, which vLLM's processes inherit. Nothing is reported to or asked of the network.
    os.environ.update({
        MARK: "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    })  # fmt: skip
    for name, value in (environment or {}).items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
