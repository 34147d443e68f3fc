"""Attention in a packed row: each answer sees its own prompt and itself, so the cost grows with the answers, not with the row squared.

    row     P P P P A A A B B Q Q Q C C          a prompt: causal over itself
    spans   prompt 0-4: A 4-7, B 7-9             an answer: its queries over the keys of prompt and answer, causal from the lower right
            prompt 9-12: C 12-14                 a prompt with short answers: all at once, masked, which is fewer calls

Known to transformers as the attention `PACKED`; without spans it is `sdpa`, so that one model takes padded passes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from services.learner.passes import PromptSpan

PACKED = "swingshift-packed"
"""Name of this attention in a model's configuration."""

_SDPA: Callable[..., tuple[torch.Tensor, None]] = sdpa_attention_forward
SHORT = 256
"""A prompt and its answers of at most so many tokens are one masked call."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Who sees whom in one packed row. `masks`: of the short spans, bool [size, size], on the row's device; None: the span is not short."""

    spans: tuple[PromptSpan, ...]
    masks: tuple[torch.Tensor | None, ...]


def spans_on(spans: Sequence[PromptSpan], device: torch.device) -> Spans:
    """`spans`, ready for the layers of a forward pass on `device`."""
    return Spans(tuple(spans), tuple(span.visible().to(device) if span.size <= SHORT else None for span in spans))


def additive_mask(spans: Sequence[PromptSpan], device: torch.device) -> torch.Tensor:
    """[1, 1, L, L] for other attentions: 0 where a row may see a column, else the smallest float32."""
    length = spans[-1].prompt[0] + spans[-1].size
    mask = torch.full((length, length), torch.finfo(torch.float32).min)
    for span in spans:
        columns = slice(span.prompt[0], span.prompt[0] + span.size)
        mask[columns, columns].masked_fill_(span.visible(), 0.0)
    return mask[None, None].to(device)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    spans: Spans | None = None,
    **settings: object,
) -> tuple[torch.Tensor, None]:
    """Takes query [1, H, L, D], key and value [1, G, L, D] with H a multiple of G, all L columns covered by `spans`; returns [1, L, H, D].

    `dropout` is 0 here always. Without `spans`: what transformers' `sdpa` does with these arguments. Raises ValueError for a kind of
    attention that this is not.
    """
    if spans is None:
        return _SDPA(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **settings)
    extra = [name for name in ("softcap", "position_bias", "s_aux") if settings.get(name) is not None]
    if extra:
        raise ValueError(f"attention with {', '.join(extra)} cannot be packed")
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    parts: list[torch.Tensor] = []
    for span, mask in zip(spans.spans, spans.masks, strict=True):
        if mask is None:
            parts += _attend(span, query, key, value, scaling)
        else:
            columns = slice(span.prompt[0], span.prompt[0] + span.size)
            row = query[:, :, columns], key[:, :, columns], value[:, :, columns]
            parts.append(F.scaled_dot_product_attention(*row, attn_mask=mask, scale=scaling))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _attend(span: PromptSpan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> list[torch.Tensor]:
    """What a prompt and then each answer to it attend to, [1, H, length, D] each."""
    own = slice(*span.prompt)
    prompt_key, prompt_value = key[:, :, own], value[:, :, own]
    parts = [F.scaled_dot_product_attention(query[:, :, own], prompt_key, prompt_value, is_causal=True, scale=scale)]
    for first, end in span.answers:
        if first == end:
            continue
        keys = torch.cat((prompt_key, key[:, :, first:end]), dim=2)
        values = torch.cat((prompt_value, value[:, :, first:end]), dim=2)
        bias = causal_lower_right(end - first, keys.shape[2])
        parts.append(F.scaled_dot_product_attention(query[:, :, first:end], keys, values, attn_mask=bias, scale=scale))
    return parts


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
