"""`number`: the last number in the answer equals the reference.

A number is written with digits, commas between groups of three, a decimal point and an exponent where needed; a minus belongs to it unless
it stands right behind a digit, a letter or a closing bracket. Fractions, roots and units are for `math_verify`.
"""

from __future__ import annotations

import math
import re

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-9

_NUMBER = re.compile(r"(?:(?<![\w)\]])[-−])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|(?:(?<![\w)\]])[-−])?(?<!\d)\.\d+")
_MARK = "####"
"""What stands before the result in the answers of GSM8K."""


def score(prompt: str, answer: str, reference: str) -> float:
    """1 if the last number in the answer is within 1e-6 of the reference, relative to the larger one, or within 1e-9; else 0.

    Raises ValueError for a reference that is no number.
    """
    wanted, found = reference_number(reference), last_number(answer)
    close = found is not None and math.isclose(found, wanted, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
    return float(close)


def last_number(text: str) -> float | None:
    """The last number in a text, None without one."""
    found = _NUMBER.findall(text)
    return _value(found[-1]) if found else None


def reference_number(reference: str) -> float:
    """The number that a reference is, or that stands behind its last `####`. Raises ValueError."""
    text = reference.rpartition(_MARK)[2].strip().removeprefix("$").removesuffix("%")
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"the reference {reference!r:.80} is no number: use the reward exact, math_verify, or one of your own")
    return _value(text)


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))
