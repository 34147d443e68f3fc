"""vLLM on a tiny model that is made on the spot."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import Qwen2Config

from services.engines.config import EngineConfig
from services.engines.vllm_arguments import engine_arguments, engine_environment
from services.engines.vllm_server import VllmServer

CACHE_BYTES = 64 << 20
DEADLY = "tests.services.engines.vllm_deadly:DeadlyToken"


@contextmanager
def quietly_imported() -> Iterator[None]:
    """Warnings of what is imported in here are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def vllm_model(vocab_size: int) -> Qwen2Config:
    """As small as vLLM's kernels for CPUs allow: heads of 32 numbers."""
    numbers = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 8192,
    }
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    nothing_special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = Qwen2Config.from_dict({**numbers, **heads, **nothing_special, "architectures": ["Qwen2ForCausalLM"]})
    assert isinstance(config, Qwen2Config)
    return config


def tiny_server(folder: Path, max_running_requests: int = 8, max_model_len: int = 4096, **kwargs: object) -> VllmServer:
    """Not started; the model's folder is made. `kwargs` are added to the arguments of vLLM."""
    vllm_model(32).save_pretrained(folder)
    config = EngineConfig(kind="vllm", max_running_requests=max_running_requests, max_model_len=max_model_len, dtype="float32")
    arguments: dict[str, object] = {**engine_arguments(config, folder, "cpu"), "kv_cache_memory_bytes": CACHE_BYTES, **kwargs}
    return VllmServer(arguments, engine_environment("cpu"))
