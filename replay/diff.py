"""The first difference of two recordings of one plan, and of what kind it is.

plan       the plans differ: two runs that were to differ
decision   all before is equal, and a core decided otherwise: its code is other code
fact       the same thing came out differently, or happened in one of them only
order      the same things happened, in another order: from there on two runs go their own ways
shorter    one of them is the beginning of the other
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from bus.entry import Entry
from bus.events import RunPlanned
from bus.recording import Recording, Row
from replay.diff_classify import Difference, classify
from replay.diff_lens import Differing, Lens, differing_fields, of_machine

Pair = tuple[Row | None, Row | None]
Track = Callable[[Iterator[Pair]], Iterable[Pair]]


@dataclass
class Comparison:
    """What was found; `difference` None: they are equal."""

    compared: int = 0
    """Entries that are the same in both."""
    difference: Difference | None = None
    codes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Service -> the digests of the code that ran in A and in B, where they are not the same."""
    machines: Differing = ()
    """What the plans say of the machines, where it is not the same."""


def untracked(pairs: Iterator[Pair]) -> Iterable[Pair]:
    """Nobody watches."""
    return pairs


def compare(a: Recording, b: Recording, lens: Lens, track: Track = untracked) -> Comparison:
    """Reads both until they differ. Raises CodecError, LogError."""
    result = Comparison()
    for left, right in track(zip_longest(a.rows(), b.rows())):
        if left is None or right is None:
            result.difference = _shorter(left, right)
            break
        if not lens.same_row(left, right):
            one, other = left.entry(), right.entry()
            _note_surroundings(result, one, other)
            if not lens.same(one, other):
                result.difference = classify(lens, (a, one), (b, other))
                break
        result.compared += 1
    return result


def _shorter(left: Row | None, right: Row | None) -> Difference:
    longer = left if left is not None else right
    assert longer is not None
    name, positions = ("A", (0, longer.position)) if left is None else ("B", (longer.position, 0))
    return Difference("shorter", f"{name} ends with entry {longer.position - 1}, the other one goes on", positions)


def _note_surroundings(result: Comparison, one: Entry, other: Entry) -> None:
    """What may explain a difference that comes later."""
    if isinstance(one.event, RunPlanned) and isinstance(other.event, RunPlanned):
        result.machines = differing_fields(of_machine(one.event), of_machine(other.event))
    codes = one.event.__dict__.get("code"), other.event.__dict__.get("code")
    if one.source == other.source and codes[0] != codes[1]:
        result.codes[one.source] = (str(codes[0]), str(codes[1]))
