"""What a replica tells vLLM when it starts: arguments, environment, and how a request is to be sampled."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bus.errors import ConfigError
from bus.events import Value
from services.data.model_folder import model_dtype
from services.engines.config import EngineConfig, VllmConfig
from services.engines.protocol import GenerateRequest
from services.engines.vllm_plugin import MARK

CPU_CACHE_BYTES = 1 << 30
IN_THE_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The model runs in the engine core's process. By default vLLM gives it one of its own on CPUs, so as to set its number of threads, which a
replica has done. Two processes that poll each other lose a third of one core's speed, and after the last message the second goes on
polling for a second, on the trainer's core."""
LOGPROBS_MODE = "processed_logprobs"
"""After temperature, top-k and top-p, renormalised: the space of `GenerateOutput.logprobs`, which training takes them to be in."""

ON_THIS_HOST = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
"""Nobody elsewhere talks to the processes of one replica: what they listen on cannot be reached from there."""

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
        # Of float32 vLLM's `auto` makes bfloat16.
        "dtype": model_dtype(model_folder) if config.dtype == "auto" else config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_running_requests,
        "max_num_batched_tokens": max(config.max_batched_tokens, config.max_running_requests),
        "tensor_parallel_size": config.vllm.tensor_parallel_size or 1,
        "gpu_memory_utilization": config.vllm.memory_share,
        "enable_prefix_caching": config.vllm.prefix_cache != "off",
        "logprobs_mode": LOGPROBS_MODE,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "generation_config": "vllm",
        "enable_sleep_mode": not cpu,
        "disable_log_stats": True,
    }
    return (_for_cpus(config) if cpu else {}) | given | own


def workers_of(config: VllmConfig) -> int:
    """Processes, or GPUs, that one replica's model is spread over."""
    pipeline = config.kwargs.get("pipeline_parallel_size", 1)
    return (config.tensor_parallel_size or 1) * (pipeline if isinstance(pipeline, int) else 1)


def _for_cpus(config: EngineConfig) -> dict[str, Value]:
    """What is better there than vLLM's defaults, unless the user has set it."""
    found: dict[str, Value] = {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES}
    if workers_of(config.vllm) == 1:
        found["distributed_executor_backend"] = IN_THE_CORE
    return found


def engine_environment(device: str) -> dict[str, str]:
    """What else vLLM's processes find in their environment on such a device, unless the user has set it."""
    if device.startswith("cuda"):
        return {"VLLM_LOGGING_LEVEL": "WARNING"}
    # There, each sleep and wake is worth a warning to vLLM; and the one function that it compiles takes 20 s of the first generation.
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore::FutureWarning", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return quiet | {"TORCH_COMPILE_DISABLE": "1"}


@contextmanager
def starting_environment(environment: Mapping[str, str], folder: Path, errors: Path) -> Iterator[None]:
    """What vLLM's processes inherit; `environment` only where it is not set. All is put back, also what vLLM adds (preloaded libraries).

    `folder`: for their sockets and whatever else they leave behind. `errors`: the file for what goes wrong in them.
    """
    before = dict(os.environ)
    # What torch compiles is not to go with the folder: this is where it would be otherwise.
    compiled = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    # `nobind`: threads stay on the replica's cores, which vLLM's processes inherit. Nothing is reported to or asked of the network.
    os.environ.update({
        MARK: str(errors),
        "VLLM_RPC_BASE_PATH": str(folder),
        "TMPDIR": str(folder),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    })  # fmt: skip
    for name, value in {"TORCHINDUCTOR_CACHE_DIR": str(compiled), **ON_THIS_HOST, **environment}.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def sampling_params(request: GenerateRequest) -> object:
    """Of one request. The seed differs with the tokens that are there already, so that a continued answer does not repeat its luck."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=(request.seed + 0x9E3779B97F4A7C15 * len(request.prefix_tokens)) & 0x7FFF_FFFF_FFFF_FFFF,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        max_tokens=request.max_new_tokens,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
