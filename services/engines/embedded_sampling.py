"""Draws tokens from logits: temperature, top-k, top-p, one uniform number a token.

A row's distribution p is the softmax of logits / temperature, restricted to the `top_k` most likely tokens, then to the smallest set of
most likely tokens that holds at least `top_p` of it, and renormalised. The token is the first one whose cumulated probability exceeds u,
and its log-probability is log p(token).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.engines.protocol import Sampling


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The settings of a batch, one row a request: [rows, 1] each. `top_k` and `top_p` are None if no row uses either."""

    temperature: torch.Tensor
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None


def sampling_rows(samplings: Sequence[Sampling], vocab_size: int, device: torch.device) -> SamplingRows:
    """Temperature 0 becomes top-k 1, whose distribution has one token of probability 1."""
    temperature = torch.tensor([sampling.temperature or 1.0 for sampling in samplings], device=device)[:, None]
    if all(sampling.temperature > 0 and sampling.top_k == 0 and sampling.top_p == 1 for sampling in samplings):
        return SamplingRows(temperature, None, None)
    ranks = [1 if sampling.temperature == 0 else sampling.top_k or vocab_size for sampling in samplings]
    return SamplingRows(
        temperature,
        top_k=torch.tensor(ranks, device=device)[:, None],
        # 2 where 1 is meant: a sum of rounded probabilities can reach 1 before the last token.
        top_p=torch.tensor([sampling.top_p if sampling.top_p < 1 else 2.0 for sampling in samplings], device=device)[:, None],
    )


def draw(logits: torch.Tensor, rows: SamplingRows, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities from logits [rows, vocabulary]; a log-probability is NaN where the logits are not finite."""
    scaled = logits.float() / rows.temperature
    order: torch.Tensor | None = None
    if rows.top_k is not None and rows.top_p is not None:
        scaled, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
        scaled = _truncated(scaled, rows.top_k, rows.top_p)
    logprobs = torch.log_softmax(scaled, dim=-1)
    # Cumulated in float64: with 150,000 tokens, float32 would lose the rare ones.
    cumulated = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    threshold = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulated[:, -1:]
    chosen = torch.searchsorted(cumulated, threshold, right=True).clamp_(max=logits.shape[-1] - 1)
    drawn = chosen if order is None else order.gather(1, chosen)
    return drawn[:, 0].tolist(), logprobs.gather(1, chosen)[:, 0].tolist()


def _truncated(sorted_logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Logits in falling order, minus infinity where a row may not sample; the first column always stays."""
    ranks = torch.arange(sorted_logits.shape[-1], device=sorted_logits.device)
    kept = sorted_logits.masked_fill(ranks >= top_k, float("-inf"))
    probabilities = kept.softmax(dim=-1)
    more_likely = probabilities.cumsum(dim=-1) - probabilities
    dropped = more_likely >= top_p
    dropped[:, 0] = False
    return kept.masked_fill(dropped, float("-inf"))
