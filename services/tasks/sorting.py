"""Sort digits: prompts of uneven length, answers as long as their prompts, a reward that looks at every digit.

The demonstrations come from teachers who disagree and are careless: most of them sort downwards, and now and then each takes any of the
digits that are left. So imitation teaches what an answer looks like and how to keep count, but scores low, at every temperature; that
upwards is right, and that care pays, can only be learned from the reward.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from bus.errors import ConfigError
from services.tasks.protocol import Prompt, SpecialTokens

_SPECIAL = SpecialTokens(pad=0, bos=1, eos=2, sep=3)
_FIRST_DIGIT = 4
_DIGITS = 10
_SIGNS = {_SPECIAL.pad: "", _SPECIAL.bos: "", _SPECIAL.eos: "", _SPECIAL.sep: "="} | {
    _FIRST_DIGIT + digit: str(digit) for digit in range(_DIGITS)
}
_SPARE_TOKENS = 8
"""How much longer than a right answer one may get; it then is of no use, but shows that the end was missed."""


@dataclass(frozen=True, slots=True)
class SortingTask:
    """Sort `min_digits` to `max_digits` digits; short prompts are more frequent than long ones, so that generation has a tail."""

    min_digits: int = 8
    max_digits: int = 48
    downwards: float = 0.7
    """Share of the teachers who sort downwards."""
    carelessness: float = 0.1
    """Probability that a teacher takes any digit that is left, not the one that is next."""
    name: str = "sorting"

    def __post_init__(self) -> None:
        if not 1 <= self.min_digits <= self.max_digits:
            raise ConfigError(f"min_digits is {self.min_digits}, max_digits {self.max_digits}: 1 <= min_digits <= max_digits is needed")

    @property
    def vocab_size(self) -> int:
        return 16

    @property
    def special(self) -> SpecialTokens:
        return _SPECIAL

    @property
    def max_prompt_length(self) -> int:
        return self.max_digits + 2

    @property
    def max_response_length(self) -> int:
        return self.max_digits + _SPARE_TOKENS

    def prompt(self, index: int, seed: int) -> Prompt:
        """`bos`, the digits, `sep`; the reference is the digits upwards, `eos`."""
        return self._prompt(self._draw(random.Random(f"sorting plan {seed} {index}")))

    def validation(self, index: int, seed: int) -> Prompt:
        """As those of the plan, from draws of their own."""
        return self._prompt(self._draw(random.Random(f"sorting validation {seed} {index}")))

    def demonstration(self, index: int, seed: int) -> tuple[Prompt, tuple[int, ...]]:
        """A prompt as drawn for the plan, and what one of the teachers answers."""
        source = random.Random(f"sorting lesson {seed} {index}")
        digits = self._draw(source)
        left = sorted(digits)
        following = -1 if source.random() < self.downwards else 0
        answer = []
        while left:
            careless = source.random() < self.carelessness
            answer.append(left.pop(int(source.random() * len(left)) if careless else following))
        return self._prompt(digits), (*answer, _SPECIAL.eos)

    def reward(self, prompt: tuple[int, ...], answer: tuple[int, ...], reference: tuple[int, ...]) -> float:
        """Right tokens of the answer, as a share of its own or the reference's tokens, whichever are more.

        A token is right if it is the smallest digit that is left, given the tokens before it, or `eos` when none is. So a mistake costs
        itself only, and 1 is the reward of the reference alone.
        """
        left = Counter(reference[:-1])
        smallest = iter(reference)
        following = next(smallest)
        right = 0
        for token in answer:
            right += token == following
            if token == _SPECIAL.eos:
                break
            left[token] -= 1
            while following != _SPECIAL.eos and left[following] <= 0:
                following = next(smallest)
        return right / max(len(answer), len(reference))

    def text(self, tokens: tuple[int, ...]) -> str:
        """Digits as digits, `sep` as `=`, ids without a meaning as `?`."""
        return "".join(_SIGNS.get(token, "?") for token in tokens)

    def _draw(self, source: random.Random) -> list[int]:
        # Only random() gives the same sequence in every version of Python.
        length = self.min_digits + int(source.random() ** 2 * (self.max_digits - self.min_digits + 1))
        return [_FIRST_DIGIT + int(source.random() * _DIGITS) for _ in range(length)]

    def _prompt(self, digits: list[int]) -> Prompt:
        return Prompt((_SPECIAL.bos, *digits, _SPECIAL.sep), (*sorted(digits), _SPECIAL.eos))
