"""From samples to the tensors of one forward and backward pass, in one of two layouts.

    padded    one row an answer:              P P P A A . .      any causal model; prompts are computed once an answer
                                              P P P B B B .
    packed    one row for all:                P P P A A B B B Q Q C C …
              prompts are computed once a group and nothing is padded; needs a model whose layers all take an attention mask

In both, only positions that predict an answer token get logits: the last prompt token predicts the first one. In the packed row an answer
sees its own prompt and itself (`packed_attention`), and positions restart; log-probabilities are those of the padded layout up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import torch

from services.samples import SampleGroup, VersionSpan

Layout = Literal["padded", "packed"]

Range = tuple[int, int]
"""First column and the one after the last."""


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
    spans: tuple[VersionSpan, ...] = ()
    """Which weights its tokens are from; of none, they count as of no known version."""


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Columns of a packed row: a prompt's, and those of each answer to it, adjacent; an answer of one token has none."""

    prompt: Range
    answers: tuple[Range, ...]

    @property
    def size(self) -> int:
        """Columns in all."""
        return (self.answers[-1] if self.answers else self.prompt)[1] - self.prompt[0]

    def visible(self) -> torch.Tensor:
        """[size, size]: True where the token of a row may see that of a column."""
        segments = torch.tensor([number for number, (first, end) in enumerate((self.prompt, *self.answers)) for _ in range(first, end)])
        causal = torch.ones(self.size, self.size, dtype=torch.bool).tril()
        return causal & ((segments[:, None] == segments[None, :]) | (segments[None, :] == 0))


@dataclass(frozen=True, slots=True)
class Pass:
    """R rows of L tokens with T answer tokens in all; T-sized tensors have one order.

    Who sees whom: `attention_mask` [R, L] with 1 = token (padded), or `spans` (packed). `keep` are the K columns that get logits;
    `pick` indexes the flattened [R * K] of them, one an answer token, and is None when it would be 0 .. T-1. `lengths` are the answers'.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    spans: tuple[PromptSpan, ...]
    keep: torch.Tensor
    pick: torch.Tensor | None
    tokens: torch.Tensor
    rollout_logprobs: torch.Tensor
    advantages: torch.Tensor
    shares: torch.Tensor
    versions: torch.Tensor
    """Of the weights that each answer token was sampled with; -1: not known."""
    lengths: tuple[int, ...]

    def to(self, device: torch.device) -> Pass:
        """The same on `device`."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            attention_mask=None if self.attention_mask is None else self.attention_mask.to(device),
            keep=self.keep.to(device),
            pick=None if self.pick is None else self.pick.to(device),
            tokens=self.tokens.to(device),
            rollout_logprobs=self.rollout_logprobs.to(device),
            advantages=self.advantages.to(device),
            shares=self.shares.to(device),
            versions=self.versions.to(device),
        )


def score(
    batch: Sequence[SampleGroup], advantages: Sequence[Sequence[float]], shares: Sequence[Sequence[float]], indices: Iterable[int]
) -> list[ScoredAnswer]:
    """Answers of the groups `indices` of the batch, without empty ones: they have nothing to train on."""
    return [
        ScoredAnswer(index, batch[index].prompt_tokens, answer.tokens, answer.logprobs, advantage, share, answer.spans)
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


def is_idle(answers: Sequence[ScoredAnswer]) -> bool:
    """The answers have no part in the loss: their pass only keeps one of several ranks in step."""
    return all(answer.share == 0 for answer in answers)


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
        spans=(),
        keep=torch.arange(first, num_columns - 1),
        pick=torch.tensor(pick),
        lengths=tuple(len(answer.tokens) for answer in answers),
        **_targets(answers),
    )


def _packed(answers: Sequence[ScoredAnswer]) -> Pass:
    ids: list[int] = []
    positions: list[int] = []
    keep: list[int] = []
    spans: list[PromptSpan] = []
    for _, group in groupby(answers, key=lambda answer: answer.group):
        ranges: list[Range] = []
        for place, answer in enumerate(group):
            size = len(answer.prompt)
            if place == 0:
                prompt = (len(ids), len(ids) + size)
                ids += answer.prompt
                positions += range(size)
            inputs = answer.tokens[:-1]  # nothing is predicted from the last one
            ranges.append((len(ids), len(ids) + len(inputs)))
            keep += [prompt[1] - 1, *range(*ranges[-1])]
            ids += inputs
            positions += range(size, size + len(inputs))
        spans.append(PromptSpan(prompt, tuple(ranges)))
    return Pass(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        attention_mask=None,
        spans=tuple(spans),
        keep=torch.tensor(keep),
        pick=None,
        lengths=tuple(len(answer.tokens) for answer in answers),
        **_targets(answers),
    )


def _targets(answers: Sequence[ScoredAnswer]) -> dict[str, torch.Tensor]:
    return {
        "tokens": torch.tensor([token for answer in answers for token in answer.tokens]),
        "rollout_logprobs": torch.tensor([value for answer in answers for value in answer.logprobs], dtype=torch.float32),
        "advantages": torch.tensor([answer.advantage for answer in answers for _ in answer.tokens], dtype=torch.float32),
        "shares": torch.tensor([answer.share for answer in answers for _ in answer.tokens], dtype=torch.float32),
        "versions": torch.tensor([version for answer in answers for version in _versions(answer)]),
    }


def _versions(answer: ScoredAnswer) -> list[int]:
    """One a token."""
    known = [span.version for span in answer.spans for _ in range(span.num_tokens)]
    return known or [-1] * len(answer.tokens)
