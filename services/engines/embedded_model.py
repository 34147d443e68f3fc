"""A Hugging Face causal language model whose memory can be given back.

built ──wake──▶ memory for weights and cache ──load──▶ ready ──sleep──▶ no memory
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bus.errors import EngineError
from services.engines.config import EngineConfig
from services.engines.embedded_cache import LayerShape, RightAlignedCache
from services.engines.embedded_forward import BatchedForward, check_forward, layer_shapes
from services.engines.embedded_weights import Weights
from services.transformers_lock import MAKING_A_MODEL

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ServedModel:
    """Weights, cache and forward of one engine. Its engine sees to it that nothing generates while they change."""

    def __init__(self, model: PreTrainedModel, shapes: Sequence[LayerShape], config: EngineConfig, device: torch.device) -> None:
        self._model = model
        self._shapes = shapes
        self._rows = config.max_running_requests
        # Room behind the longest request, so that the cache moves to the left once in a while, not with every token.
        self._columns = config.max_model_len + min(config.max_model_len, 256)
        self._weights = Weights(model, device)
        self._forward: BatchedForward | None = None
        self._ready = False
        self._version: int | None = None
        self.device = device
        self.vocab_size = vocab_size(model, "the embedded engine")

    @property
    def ready(self) -> bool:
        """Whether a load has been completed since the last wake, and none was begun after it."""
        return self._ready

    @property
    def version(self) -> int | None:
        """Version of the weights that were loaded last and completely."""
        return self._version

    @property
    def num_bytes(self) -> int:
        """Memory that weights and cache have now; 0 when asleep."""
        return self._weights.num_bytes + (self._forward.cache.num_bytes if self._forward is not None else 0)

    @property
    def forward(self) -> BatchedForward:
        assert self._forward is not None, "an engine generates only while it is awake"
        return self._forward

    def wake(self) -> None:
        """Takes memory for weights and cache. Raises EngineError, with none taken, if there is not enough."""
        try:
            self._weights.allocate()
            cache = RightAlignedCache(self._shapes, self._rows, self._columns, self._model.dtype, self.device)
        except (RuntimeError, MemoryError) as error:
            self.sleep()
            raise EngineError(
                f"not enough memory on {self.device} for the weights and the cache of {self._rows} requests: {error}; "
                "lower max_running_requests or max_model_len"
            ) from error
        self._forward = BatchedForward(self._model, cache, self.device)

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copies all weights in. Raises EngineError, after which the model is not ready until a load is complete."""
        self._ready = False
        self._weights.load(weights)
        self._version = version
        self._ready = True

    def sleep(self) -> None:
        """Gives all memory back."""
        self._ready = False
        self._forward = None
        self._weights.free()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def build_model(folder: Path, config: EngineConfig, device: str) -> ServedModel:
    """The model of a folder with a Hugging Face config.json, asleep. Raises EngineError if it cannot be served."""
    try:
        model = _with_random_weights(folder, config.dtype)
        shapes = layer_shapes(model, config.max_model_len)
        check_forward(model, shapes)
    except (OSError, ImportError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise EngineError(f"the model in {folder} cannot be served by the embedded engine: {type(error).__name__}: {error}") from error
    return ServedModel(model, shapes, config, torch.device(device))


def _with_random_weights(folder: Path, dtype: str) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    chosen = _DTYPES[dtype] if dtype != "auto" else config.dtype or torch.float32
    # In a process shared with the trainer, the weights that are drawn and thrown away must not change its random numbers.
    with MAKING_A_MODEL, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=chosen)
    model.requires_grad_(False)
    model.eval()
    return model


def vocab_size(model: PreTrainedModel, engine: str) -> int:
    """How many tokens the model knows. Raises EngineError for one that `engine` cannot serve."""
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, torch.nn.Embedding):
        raise EngineError(f"{type(model).__name__} embeds its tokens by a {type(embeddings).__name__}: {engine} cannot serve it")
    return embeddings.num_embeddings
