"""Whether the vLLM that is installed can do what a replica asks of it, found out by names and signatures before anything is started.

vLLM's interfaces for RL are young: a release that renames one would otherwise fail in the middle of a swing.

    python -m services.engines.vllm_probe       exit code 0, or what is missing on stderr
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence

from bus.errors import EngineError
from services.engines.vllm_installed import HOW, KNOWN_VERSION, installed_vllm, problem_of

Needs = Mapping[str, Sequence[str]]
"""module:object -> parameters it must take, or fields it must have."""

NEEDED: Needs = {
    "vllm.v1.engine.async_llm:AsyncLLM.from_engine_args": ("engine_args", "stat_loggers"),
    "vllm.v1.engine.async_llm:AsyncLLM.add_request": ("request_id", "prompt", "params"),
    "vllm.v1.engine.async_llm:AsyncLLM.abort": ("request_id",),
    "vllm.v1.engine.async_llm:AsyncLLM.pause_generation": ("mode", "clear_cache"),
    "vllm.v1.engine.async_llm:AsyncLLM.resume_generation": (),
    "vllm.v1.engine.async_llm:AsyncLLM.is_paused": (),
    "vllm.v1.engine.async_llm:AsyncLLM.sleep": ("level", "mode"),
    "vllm.v1.engine.async_llm:AsyncLLM.wake_up": ("tags",),
    "vllm.v1.engine.async_llm:AsyncLLM.is_sleeping": (),
    "vllm.v1.engine.async_llm:AsyncLLM.reset_prefix_cache": ("reset_running_requests", "reset_connector"),
    "vllm.v1.engine.async_llm:AsyncLLM.init_weight_transfer_engine": ("request",),
    "vllm.v1.engine.async_llm:AsyncLLM.start_weight_update": (),
    "vllm.v1.engine.async_llm:AsyncLLM.update_weights": ("request",),
    "vllm.v1.engine.async_llm:AsyncLLM.finish_weight_update": ("weight_version",),
    "vllm.v1.engine.async_llm:AsyncLLM.get_weight_version": (),
    "vllm.v1.engine.async_llm:AsyncLLM.compute_weight_checksums": (),
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": ("timeout",),
    "vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory.register_engine": ("name", "module_path_or_cls", "class_name"),
    "vllm.distributed.weight_transfer.base:WeightTransferUpdateRequest": ("update_info",),
    "vllm.config.weight_transfer:WeightTransferConfig": ("backend",),
    "vllm.distributed.weight_transfer.base:WeightTransferEngine.set_weight_update_target": ("model", "model_config"),
    "vllm.distributed.weight_transfer.nccl_common:NCCLWeightTransferInitInfo": (
        "rank_offset", "world_size", "nccl_unique_id_b64", "packed", "packed_buffer_size_bytes", "packed_num_buffers",
    ),
    "vllm.distributed.weight_transfer.nccl_common:uid_init_process_group": ("nccl_unique_id_bytes", "rank", "world_size", "device"),
    "vllm.distributed.weight_transfer.nccl_engine:NCCLTrainerWeightTransferEngine": (
        "client", "source", "packed", "packed_buffer_size_bytes", "packed_num_buffers",
    ),
    "vllm.distributed.weight_transfer.nccl_engine:NCCLWeightTransferUpdateInfo": ("names", "dtype_names", "shapes"),
    "vllm.distributed.weight_transfer.ipc_engine:IPCWeightTransferInitInfo": ("packed",),
    "vllm.distributed.weight_transfer.ipc_engine:IPCWeightTransferUpdateInfo": (
        "names", "dtype_names", "shapes", "ipc_handles", "tensor_sizes",
    ),
    "vllm.model_executor.model_loader.reload:initialize_layerwise_reload": ("model",),
    "vllm.model_executor.model_loader.reload:finalize_layerwise_reload": (),
    "vllm.inputs.engine:tokens_input": ("prompt_token_ids", "cache_salt"),
    "vllm.outputs:CompletionOutput": ("token_ids", "logprobs", "finish_reason", "weight_versions"),
    "vllm.outputs:WeightVersionSpan": ("version", "start", "end"),
    "vllm:SamplingParams": (
        "temperature", "top_p", "top_k", "seed", "stop_token_ids", "ignore_eos", "max_tokens", "logprobs", "flat_logprobs", "detokenize",
        "output_kind",
    ),
    "vllm:AsyncEngineArgs": (
        "model", "dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "gpu_memory_utilization",
        "skip_tokenizer_init", "load_format", "logprobs_mode", "enable_prefix_caching", "enforce_eager", "disable_log_stats",
        "weight_transfer_config", "generation_config", "enable_sleep_mode", "kv_cache_memory_bytes",
    ),
}  # fmt: skip


def check_installed() -> None:
    """Raises EngineError if vLLM is missing, lacks something, or cannot find our plugin."""
    if problem := problem_of(installed_vllm()):
        raise EngineError(problem)
    version = _version()
    if lacks := missing(NEEDED):
        some = "; ".join(lacks[:5]) + ("; …" if len(lacks) > 5 else "")
        raise EngineError(
            f"vLLM {version} lacks {len(lacks)} of the interfaces that replicas use: {some}. Install vLLM {KNOWN_VERSION}: {HOW}"
        )


def missing(needed: Needs) -> list[str]:
    """What the installed packages lack, in words."""
    lacks = []
    for place, parameters in needed.items():
        found = _find(place)
        if found is None:
            lacks.append(place)
            continue
        lacks += [f"{place}({name})" for name in parameters if name not in _parameters(found)]
    return lacks


def _version() -> str:
    try:
        return str(importlib.import_module("vllm").__version__)
    except ImportError as error:
        raise EngineError(f"vLLM cannot be imported ({error}): its environment is not whole, or of another build; {HOW}") from error


def _find(place: str) -> object | None:
    module, _, path = place.partition(":")
    try:
        found: object = importlib.import_module(module)
    except ImportError:
        return None
    for name in path.split("."):
        found = inspect.getattr_static(found, name, None)
        if isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        # A package may hand out its names on demand only.
        if found is None and path.count(".") == 0:
            found = getattr(importlib.import_module(module), name, None)
    return found


def _parameters(found: object) -> set[str]:
    if dataclasses.is_dataclass(found):
        return {field.name for field in dataclasses.fields(found)}
    if not callable(found):
        return set()
    return set(inspect.signature(found).parameters) | set(getattr(found, "__struct_fields__", ()))


if __name__ == "__main__":
    try:
        check_installed()
    except EngineError as error:
        sys.exit(str(error))
