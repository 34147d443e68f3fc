"""Rewards by name, for prompts and answers as text: each a file, each `score(prompt, answer, reference)`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from bus.errors import ConfigError
from services.named_rewards import exact, math_answer, number

TextReward = Callable[[str, str, str], float]
"""(prompt as the model saw it, answer without special tokens, reference) -> reward."""

NAMES = ("exact", "number", "math_verify")


def named_reward(name: str, others: Sequence[str] = ()) -> TextReward:
    """The reward of this name. Raises ConfigError, for an unknown one with the nearest, also among the names of `others`."""
    match name:
        case "exact":
            return exact.score
        case "number":
            return number.score
        case "math_verify":
            math_answer.check_installed()
            return math_answer.score
    known = (*NAMES, *others)
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(f"data.reward is {name!r}: there are {', '.join(known)}, or write path/file.py:function{hint}")


def reference_check(name: str) -> Callable[[str], object] | None:
    """What raises ValueError for a reference that the reward of this name cannot use, if it is particular about that."""
    return number.reference_number if name == "number" else None
