"""Sort digits: short prompts, answers as long as their prompts, a reward that knows how far an answer is right.

The demonstrations come from a careless teacher, who now and then takes another of the digits left than the smallest. Imitation can
therefore reach no more than the teacher's score; what reinforcement learning adds is to do better than the teacher.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from services.tasks.protocol import Prompt, SpecialTokens

_SPECIAL = SpecialTokens(pad=0, bos=1, eos=2, sep=3)
_FIRST_DIGIT = 4
_DIGITS = 10
_VOCAB_SIZE = 16


@dataclass(frozen=True, slots=True)
class SortingTask:
    """Sort `min_digits` to `max_digits` digits; the teacher errs with probability `carelessness` at each digit."""

    min_digits: int = 6
    max_digits: int = 28
    carelessness: float = 0.15
    name: str = "sorting"

    @property
    def vocab_size(self) -> int:
        return _VOCAB_SIZE

    @property
    def special(self) -> SpecialTokens:
        return _SPECIAL

    @property
    def max_prompt_length(self) -> int:
        return self.max_digits + 2

    @property
    def max_response_length(self) -> int:
        return self.max_digits + 8

    def prompt(self, index: int, seed: int) -> Prompt:
        return self._draw(random.Random(f"sorting plan {seed} {index}"))

    def demonstration(self, index: int, seed: int) -> tuple[Prompt, tuple[int, ...]]:
        rng = random.Random(f"sorting lesson {seed} {index}")
        prompt = self._draw(rng)
        left = list(prompt.reference[:-1])
        answer = []
        while left:
            careless = rng.random() < self.carelessness
            answer.append(left.pop(int(rng.random() * len(left)) if careless else 0))
        return prompt, (*answer, _SPECIAL.eos)

    def reward(self, prompt: tuple[int, ...], answer: tuple[int, ...], reference: tuple[int, ...]) -> float:
        """The share of `reference` that the answer has right before its first mistake."""
        right = 0
        for given, wanted in zip(answer, reference, strict=False):
            if given != wanted:
                break
            right += 1
        return right / len(reference)

    def _draw(self, rng: random.Random) -> Prompt:
        # Only random() keeps its sequence across Python versions.
        length = self.min_digits + int(rng.random() * (self.max_digits - self.min_digits + 1))
        digits = [_FIRST_DIGIT + int(rng.random() * _DIGITS) for _ in range(length)]
        return Prompt((_SPECIAL.bos, *digits, _SPECIAL.sep), (*sorted(digits), _SPECIAL.eos))
