"""What a built-in task is: numbered prompts, demonstrations to imitate, and a reward that can be checked by computation.

    prompt(i, seed) ──▶ model answers ──▶ reward(prompt, answer, reference) in [0, 1]
    demonstration(i, seed) ──▶ warm start        validation(i, seed) ──▶ evaluation

A task speaks in token ids, so no tokenizer is needed; `text` says for people, and for rewards that read text, what they stand for. It is
pure Python: reward workers and the rollouter import it without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids with a role: `sep` ends the prompt, `eos` ends the answer and belongs to it."""

    pad: int
    bos: int
    eos: int
    sep: int


Reference = tuple[int, ...] | str
"""What the right answer is: a built-in task's in tokens, `eos` included; that of a file in text."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, and what the right answer to it is."""

    tokens: tuple[int, ...]
    reference: Reference


class Task(Protocol):
    """One verifiable task. Equal arguments give equal results in every process and on every machine."""

    @property
    def name(self) -> str:
        """The name it is registered under."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special ones included; ids are 0 … vocab_size - 1."""

    @property
    def special(self) -> SpecialTokens:
        """The ids with a role."""

    @property
    def max_prompt_length(self) -> int:
        """Tokens of the longest prompt."""

    @property
    def max_response_length(self) -> int:
        """Tokens an answer may have, `eos` included."""

    def prompt(self, index: int, seed: int) -> Prompt:
        """Prompt number `index` (from 0, without an end) of the order that `seed` fixes."""

    def validation(self, index: int, seed: int) -> Prompt:
        """Prompt number `index` of the validation set, drawn apart from the plan's."""

    def demonstration(self, index: int, seed: int) -> tuple[Prompt, tuple[int, ...]]:
        """A prompt that no plan contains, and an answer to it, not necessarily the best, for the warm start to imitate."""

    def reward(self, prompt: tuple[int, ...], answer: tuple[int, ...], reference: tuple[int, ...]) -> float:
        """How good `answer` is, in [0, 1]."""

    def text(self, tokens: tuple[int, ...]) -> str:
        """What these tokens stand for, the special ones without a sign of their own left out."""
