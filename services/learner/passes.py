"""From samples to the tensors of one forward and backward pass, in one of two layouts.

    padded    one row an answer:              P P P A A . .      any causal model; prompts are computed once an answer
                                              P P P B B B .
    packed    one row for all:                P P P A A B B B Q Q C C …
              prompts are computed once a group and nothing is padded; needs a model whose layers all take an attention mask

In both, only positions that predict an answer token get logits: the last prompt token predicts the first one. The packed row is masked so
that an answer sees its own prompt and itself, and positions restart; log-probabilities are those of the padded layout up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import torch

from services.samples import SampleGroup

Layout = Literal["padded", "packed"]

_PROMPT = -1
"""Segment of a packed prompt token; answers are 0, 1, 2, …"""


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """An answer as the loss sees it; `group` tells which answers share `prompt`."""

    group: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    share: float
    """What the loss of each of its tokens is multiplied by."""


@dataclass(frozen=True, slots=True)
class Pass:
    """R rows of L tokens with T answer tokens in all; T-sized tensors have one order.

    `attention_mask` is [R, L] with 1 = token (padded) or additive [1, 1, L, L] (packed). `keep` are the K columns that get logits;
    `pick` indexes the flattened [R * K] of them, one an answer token, and is None when it would be 0 .. T-1. `lengths` are the answers'.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor
    keep: torch.Tensor
    pick: torch.Tensor | None
    tokens: torch.Tensor
    rollout_logprobs: torch.Tensor
    advantages: torch.Tensor
    shares: torch.Tensor
    lengths: tuple[int, ...]

    def to(self, device: torch.device, mask_dtype: torch.dtype = torch.float32) -> Pass:
        """The same on `device`; an additive mask must have the dtype that attention computes in."""
        additive = self.attention_mask.is_floating_point()
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            attention_mask=self.attention_mask.to(device, mask_dtype) if additive else self.attention_mask.to(device),
            keep=self.keep.to(device),
            pick=None if self.pick is None else self.pick.to(device),
            tokens=self.tokens.to(device),
            rollout_logprobs=self.rollout_logprobs.to(device),
            advantages=self.advantages.to(device),
            shares=self.shares.to(device),
        )


def score(
    batch: Sequence[SampleGroup], advantages: Sequence[Sequence[float]], shares: Sequence[Sequence[float]], indices: Iterable[int]
) -> list[ScoredAnswer]:
    """Answers of the groups `indices` of the batch, without empty ones: they have nothing to train on."""
    return [
        ScoredAnswer(index, batch[index].prompt_tokens, answer.tokens, answer.logprobs, advantage, share)
        for index in indices
        for answer, advantage, share in zip(batch[index].answers, advantages[index], shares[index], strict=True)
        if answer.tokens
    ]


def cut(answers: Sequence[ScoredAnswer], layout: Layout, max_tokens: int) -> list[list[ScoredAnswer]]:
    """Consecutive answers in runs of at most `max_tokens` tokens, prompts included; an answer that alone is over it is a run of its own."""
    runs: list[list[ScoredAnswer]] = []
    used = 0
    for answer in answers:
        alone = len(answer.prompt) + len(answer.tokens)
        shares_prompt = layout == "packed" and bool(runs) and runs[-1][-1].group == answer.group
        added = len(answer.tokens) if shares_prompt else alone
        if not runs or used + added > max_tokens:
            runs.append([])
            used, added = 0, alone
        runs[-1].append(answer)
        used += added
    return runs


def build(answers: Sequence[ScoredAnswer], layout: Layout) -> Pass:
    """The tensors of one pass over `answers` (at least one, each with a prompt and tokens), on the CPU."""
    return _packed(answers) if layout == "packed" else _padded(answers)


def _padded(answers: Sequence[ScoredAnswer]) -> Pass:
    num_columns = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
    first = min(len(answer.prompt) for answer in answers) - 1
    num_kept = num_columns - 1 - first
    ids = [answer.prompt + answer.tokens for answer in answers]
    padded = [list(row) + [0] * (num_columns - len(row)) for row in ids]
    mask = [[1] * len(row) + [0] * (num_columns - len(row)) for row in ids]
    pick = [
        row * num_kept + len(answer.prompt) - 1 - first + offset
        for row, answer in enumerate(answers)
        for offset in range(len(answer.tokens))
    ]
    return Pass(
        input_ids=torch.tensor(padded),
        position_ids=torch.arange(num_columns).repeat(len(answers), 1),
        attention_mask=torch.tensor(mask),
        keep=torch.arange(first, num_columns - 1),
        pick=torch.tensor(pick),
        lengths=tuple(len(answer.tokens) for answer in answers),
        **_targets(answers),
    )


def _packed(answers: Sequence[ScoredAnswer]) -> Pass:
    ids: list[int] = []
    positions: list[int] = []
    prompts: list[int] = []
    segments: list[int] = []
    keep: list[int] = []
    for number, (_, group) in enumerate(groupby(answers, key=lambda answer: answer.group)):
        for place, answer in enumerate(group):
            size = len(answer.prompt)
            if place == 0:
                end_of_prompt = len(ids) + size - 1
                ids += answer.prompt
                positions += range(size)
                segments += [_PROMPT] * size
                prompts += [number] * size
            inputs = answer.tokens[:-1]  # nothing is predicted from the last one
            keep += [end_of_prompt, *range(len(ids), len(ids) + len(inputs))]
            ids += inputs
            positions += range(size, size + len(inputs))
            segments += [place] * len(inputs)
            prompts += [number] * len(inputs)
    return Pass(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        attention_mask=_additive_mask(torch.tensor(prompts), torch.tensor(segments)),
        keep=torch.tensor(keep),
        pick=None,
        lengths=tuple(len(answer.tokens) for answer in answers),
        **_targets(answers),
    )


def _additive_mask(prompts: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """[1, 1, L, L]: 0 where row may see column, else the smallest float32."""
    causal = torch.ones(len(prompts), len(prompts), dtype=torch.bool).tril()
    same_prompt = prompts[:, None] == prompts[None, :]
    visible_segment = (segments[:, None] == segments[None, :]) | (segments[None, :] == _PROMPT)
    mask = torch.zeros(causal.shape).masked_fill_(~(causal & same_prompt & visible_segment), torch.finfo(torch.float32).min)
    return mask[None, None]


def _targets(answers: Sequence[ScoredAnswer]) -> dict[str, torch.Tensor]:
    return {
        "tokens": torch.tensor([token for answer in answers for token in answer.tokens]),
        "rollout_logprobs": torch.tensor([value for answer in answers for value in answer.logprobs], dtype=torch.float32),
        "advantages": torch.tensor([answer.advantage for answer in answers for _ in answer.tokens], dtype=torch.float32),
        "shares": torch.tensor([answer.share for answer in answers for _ in answer.tokens], dtype=torch.float32),
    }
