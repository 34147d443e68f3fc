"""Of what kind the first difference of two recordings is, when both go on and the entries here are not the same.

A core that was given the same entries decides the same: if what it decides on an entry that both have is not equal, its code is not. Facts
come in whatever order the world brings them: each side's is looked for in what is ahead on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from bus.entry import Entry
from bus.events import PolicyAttached, RunPlanned, ServiceStarted
from bus.recording import Recording
from replay.diff_lens import Differing, Lens, is_about

Kind = Literal["plan", "decision", "fact", "order", "shorter"]
WINDOW = 20_000
"""How far ahead the counterpart of an entry is looked for."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two recordings part. `positions`: of the entries that are compared, in A and in B (0: there is none)."""

    kind: Kind
    what: str
    positions: tuple[int, int]
    fields: Differing = ()


@dataclass(frozen=True, slots=True)
class _Side:
    """One recording from the difference on."""

    name: str
    recording: Recording
    entry: Entry


def classify(lens: Lens, a: tuple[Recording, Entry], b: tuple[Recording, Entry]) -> Difference:
    """`a` and `b`: each recording, and its entry at the first position where they are not the same."""
    left, right = _Side("A", *a), _Side("B", *b)
    one, other = left.entry, right.entry
    here = (one.position, other.position)
    if isinstance(one.event, RunPlanned) and isinstance(other.event, RunPlanned) and not lens.says_same(one.event, other.event):
        return Difference("plan", "the plans differ", here, lens.differing(one.event, other.event))
    if is_about(one) == is_about(other) and not one.derived:
        return Difference("fact", f"{one.event.kind} by {one.source} came out differently", here, _all_fields(lens, one, other))
    return (
        _decision(lens, left, right)
        or _decision(lens, right, left)
        or _fact(lens, left, right)
        or _fact(lens, right, left)
        or Difference("order", _order(lens, left, right), here)
    )


def _decision(lens: Lens, side: _Side, other: _Side) -> Difference | None:
    """What the core decided on the entry that led to this one is not the same in both."""
    entry = side.entry
    if not entry.derived:
        return None
    mine, theirs = _decided(side, entry.source, entry.cause), _decided(other, entry.source, entry.cause)
    for one, two in zip_longest(mine, theirs):
        if one is not None and two is not None and lens.says_same(one.event, two.event):
            continue
        if two is None and _restarts(other, entry.source, entry.cause):
            what = f"{entry.source} was replaced in {other.name} before it had appended what it decides on entry {entry.cause}"
            return Difference("fact", what, _places(side, one, two))
        return _decided_otherwise(lens, side, other, one, two)
    return None


def _decided_otherwise(lens: Lens, side: _Side, other: _Side, one: Entry | None, two: Entry | None) -> Difference:
    on = f"on entry {side.entry.cause}, before which all is equal"
    if one is not None and two is not None:
        kinds = one.event.kind if one.event.kind == two.event.kind else f"{one.event.kind} in {side.name}, {two.event.kind} in {other.name}"
        fields = _sided(lens, side, one, two) if one.event.kind == two.event.kind else ()
        return Difference("decision", f"{side.entry.source} decides differently {on}: {kinds}", _places(side, one, two), fields)
    found, name = (one, side.name) if one is not None else (two, other.name)
    assert found is not None
    what = f"{side.entry.source} decides {found.event.kind} in {name} only, {on}"
    return Difference("decision", what, _places(side, one, two))


def _fact(lens: Lens, side: _Side, other: _Side) -> Difference | None:
    """This fact came out differently on the other side, or is not there."""
    entry = side.entry
    if entry.derived:
        return None
    found = _counterpart(lens, entry, other)
    if found is None:
        what = f"{entry.event.kind} by {entry.source} is in {side.name} only, as far as the next {WINDOW:,} entries go"
        return Difference("fact", what, _places(side, entry, other.entry))
    if lens.says_same(entry.event, found.event):
        return None
    what = f"{entry.event.kind} by {entry.source} came out differently"
    return Difference("fact", what, _places(side, entry, found), _sided(lens, side, entry, found))


def _order(lens: Lens, left: _Side, right: _Side) -> str:
    ours, theirs = _counterpart(lens, right.entry, left), _counterpart(lens, left.entry, right)
    where = [f"what {side.name} has here, {other.name} has at {found.position}"
             for side, other, found in ((left, right, theirs), (right, left, ours)) if found is not None]  # fmt: skip
    return f"the same, in another order: {'; '.join(where)}"


def _decided(side: _Side, source: str, cause: int) -> Sequence[Entry]:
    rows = side.recording.rows(cause + 1, cause + WINDOW, sources=(source,))
    return [row.entry() for row in rows if row.derived and row.cause == cause]


def _restarts(side: _Side, source: str, cause: int) -> bool:
    """The next words of the source after its last decision on `cause` are those of a new incarnation."""
    for row in side.recording.rows(side.entry.position, side.entry.position + WINDOW, sources=(source,)):
        if row.kind in (ServiceStarted.kind, PolicyAttached.kind):
            return True
        if row.derived and row.cause > cause:
            return False
    return False


def _counterpart(lens: Lens, entry: Entry, side: _Side) -> Entry | None:
    """The first entry ahead about the same thing that says the same; else the first about the same thing."""
    about, first = is_about(entry), None
    for row in side.recording.rows(side.entry.position, side.entry.position + WINDOW, sources=(entry.source,)):
        if row.kind == entry.event.kind:
            found = row.entry()
            if is_about(found) == about:
                if lens.says_same(entry.event, found.event):
                    return found
                first = first or found
    return first


def _places(side: _Side, one: Entry | None, two: Entry | None) -> tuple[int, int]:
    """Positions in A and in B, when `one` is of `side`."""
    mine, theirs = one.position if one is not None else 0, two.position if two is not None else 0
    return (mine, theirs) if side.name == "A" else (theirs, mine)


def _sided(lens: Lens, side: _Side, one: Entry, two: Entry) -> Differing:
    return lens.differing(one.event, two.event) if side.name == "A" else lens.differing(two.event, one.event)


def _all_fields(lens: Lens, one: Entry, other: Entry) -> Differing:
    """Of two entries about the same thing; fields of the envelope, too."""
    envelope = [(name, getattr(one, name), getattr(other, name)) for name in ("epoch", "cause", "at")]
    return (*lens.differing(one.event, other.event), *((n, a, b) for n, a, b in envelope if a != b and (n != "at" or lens.strict)))
