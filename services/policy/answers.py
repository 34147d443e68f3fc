"""What a policy may answer. It is checked here and nowhere else: a run, a trial, a test and a replay say the same of the same answer.

A user's file is not type-checked, so an answer may be anything at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import cast

from policies.protocol import Verdict

MAX_REASON = 1_000
"""Characters."""
MAX_EVIDENCE = 1_000
"""Numbers."""
MAX_NUMBER = 2**63 - 1
MAX_SHOWN = 80
"""Characters of an answer that are shown."""
VERDICT = "a Verdict, made by `lend(give_back_at, reason, **numbers)` or `keep(reason, **numbers)`"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an answer."""

    got: str
    """The part of it that is wrong, shortened."""
    expected: str


def verdict_faults(answer: object) -> Iterator[Fault]:
    """All that is wrong with what `verdict` (or `extra`, where that is not None) answered."""
    if answer is None:
        yield Fault("None", f"{VERDICT}: is there a `return` on every way through it?")
        return
    if not isinstance(answer, Verdict):
        yield Fault(shown(answer), VERDICT)
        return
    target, reason = cast(object, answer.target), cast(object, answer.reason)
    if target not in ("train", "rollout"):
        yield Fault(f"target {shown(target)}", "target 'rollout' (lend) or 'train' (do not)")
    yield from number_faults(answer.give_back_at, "give_back_at ")
    if not isinstance(reason, str) or not reason.strip():
        yield Fault(f"reason {shown(reason)}", "a reason, in a word")
    elif len(reason) > MAX_REASON:
        yield Fault(f"a reason of {len(reason)} characters, {shown(reason)}", f"a reason of at most {MAX_REASON} characters")
    if not _is_number(answer.max_lent_s) or answer.max_lent_s < 0:
        yield Fault(f"max_lent_s {shown(answer.max_lent_s)}", "max_lent_s in seconds, 0 for as the plan says")
    yield from _evidence_faults(answer.evidence)


def number_faults(answer: object, what: str = "") -> Iterator[Fault]:
    """What is wrong with a number of ready samples at which devices are to go back."""
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer <= MAX_NUMBER:
        yield Fault(f"{what}{shown(answer)}", "give_back_at as a whole number of ready samples, 0 or more (and below 2**63)")


def choice_faults(answer: object) -> Iterator[Fault]:
    """What is wrong with the answer to a question of yes or no."""
    if not isinstance(answer, bool):
        yield Fault(shown(answer), "True or False")


def shown(value: object) -> str:
    """A user's value in a few characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  (whatever a user's class, or a number of many thousand digits, raises)
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _evidence_faults(evidence: object) -> Iterator[Fault]:
    expected = "evidence of finite numbers, each under a name"
    if not isinstance(evidence, Mapping):
        yield Fault(f"evidence {shown(evidence)}", expected)
        return
    if len(evidence) > MAX_EVIDENCE:
        yield Fault(f"evidence of {len(evidence)} numbers", f"at most {MAX_EVIDENCE} numbers")
        return
    for name, value in evidence.items():
        if not isinstance(name, str) or len(name) > MAX_REASON or not _is_number(value):
            yield Fault(f"evidence {name if isinstance(name, str) and len(name) <= MAX_SHOWN else shown(name)}={shown(value)}", expected)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= MAX_NUMBER if isinstance(value, int) else isfinite(value)
