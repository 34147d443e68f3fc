"""A model's forward over rows of different lengths, with a cache and masks of ours.

Not every architecture can be driven so: recurrent layers keep no keys, some models derive positions from a padding mask. `check_forward`
therefore compares with the model's plain forward, and refuses what differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

from bus.errors import EngineError
from services.engines.embedded_cache import LayerShape, RightAlignedCache
from services.transformers_names import cache_argument

_CHECKED = ((3, 1, 2, 1, 3), (2, 3), (1, 1, 2, 3, 3, 2, 1))


class BatchedForward:
    """Runs the model for the rows of one cache. Logits come as [rows, vocabulary]."""

    def __init__(self, model: PreTrainedModel, cache: RightAlignedCache, device: torch.device) -> None:
        self._model = model
        self._cache = cache
        self._cache_argument = cache_argument(model)
        self._device = device

    @property
    def cache(self) -> RightAlignedCache:
        return self._cache

    def prefill(self, contexts: Sequence[Sequence[int]], first_row: int, longest: int) -> torch.Tensor:
        """Logits behind each context, which becomes a row from `first_row` on; the rows before have up to `longest` tokens."""
        width = max(len(context) for context in contexts)
        padding = [width - len(context) for context in contexts]
        tokens = [[0] * pad + list(context) for pad, context in zip(padding, contexts, strict=True)]
        self._cache.begin_rows(first_row, len(contexts), width, longest)
        columns = torch.arange(width, device=self._device)
        first_columns = torch.tensor(padding, device=self._device)[:, None]
        hidden = (columns < first_columns)[:, None, None, :] | (columns > columns[:, None])
        return self._forward(torch.tensor(tokens, device=self._device), hidden, (columns - first_columns).clamp_(min=0))

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Logits behind `tokens`, the next one of each row; before it the rows have `lengths` tokens."""
        longest = max(lengths)
        self._cache.begin_token(len(lengths), longest)
        positions = torch.tensor(lengths, device=self._device)[:, None]
        hidden = (torch.arange(longest + 1, device=self._device) < longest - positions)[:, None, None, :]
        return self._forward(torch.tensor(tokens, device=self._device)[:, None], hidden, positions)

    def _forward(self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # The lowest finite number, not minus infinity: a padding token sees nothing, and softmax over nothing is NaN.
        dtype = self._model.dtype
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, torch.finfo(dtype).min)
        logits: torch.Tensor = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        ).logits
        return logits[:, -1]


@torch.inference_mode()
def layer_shapes(model: PreTrainedModel, max_model_len: int) -> list[LayerShape]:
    """What each layer keeps of a token, found by a plain forward. Raises EngineError for layers that keep something else."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([[1, 2]]), use_cache=True, **{cache_argument(model): cache})
    shapes = []
    for number, layer in enumerate(cache.layers):
        if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
            raise EngineError(f"layer {number} keeps a {type(layer).__name__}, not keys and values: the embedded engine cannot serve it")
        window = layer.get_max_length()
        if 0 <= window < max_model_len:
            raise EngineError(
                f"layer {number} sees the last {window} tokens only, max_model_len is {max_model_len}: "
                f"the embedded engine serves this model with max_model_len up to {window}"
            )
        shapes.append(LayerShape((layer.keys.shape[1], layer.keys.shape[3]), (layer.values.shape[1], layer.values.shape[3])))
    return shapes


@torch.inference_mode()
def check_forward(model: PreTrainedModel, shapes: Sequence[LayerShape]) -> None:
    """Raises EngineError unless rows that come, grow, are copied and go give the logits of the plain forward."""
    device = torch.device("cpu")
    rows = [list(tokens) for tokens in _CHECKED]
    forward = BatchedForward(model, RightAlignedCache(shapes, len(rows), 8, model.dtype, device), device)
    got = [forward.prefill(rows[:2], 0, 0), forward.prefill(rows[2:], 2, len(rows[0]))]
    expected = [_plain(model, rows)]
    # The cache moves to the right for the last prompt, and to the left for the second token, when the longest row is gone.
    for remaining in (3, 2):
        rows = rows[:remaining]
        got.append(forward.decode([1] * remaining, [len(row) for row in rows]))
        rows = [[*row, 1] for row in rows]
        expected.append(_plain(model, rows))
    difference = (torch.cat(got) - torch.cat(expected)).abs().max().item()
    largest = torch.cat(expected).abs().max().item()
    allowed = largest * (1e-3 if model.dtype == torch.float32 else 0.05)
    if not difference <= allowed:
        raise EngineError(
            f"{type(model).__name__} gives other logits in the embedded engine than in its plain forward "
            f"(by {difference:.2g}, of up to {largest:.2g}): it cannot be served"
        )


def _plain(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.cat([model(input_ids=torch.tensor([row])).logits[:, -1] for row in rows])
