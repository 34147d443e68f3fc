"""What a verification finds: one thing that is not as it should be, with all that is needed to see why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from bus.events import Event

Sort = Literal["chain", "envelope", "unreadable", "tail", "decision", "missing", "confused", "invariant", "payload", "weights", "snapshot"]
LOG = "log"
"""Source of a difference that is of no single entry."""
MOST_KEPT = 100_000
"""Differences of one sort of code that are kept; the rest is counted."""
MOST_STATES = 2
"""Differences of one service, and of those of other code, that carry the state before them."""

_BY_HAND = "an entry was changed, added, removed or moved by hand, or the disk lost it: compare with a copy, or with the log on the server"
_UNSTABLE = (
    "the core looks at something that is not in the log (clock, environment, random numbers, the order of a set): "
    "see that nothing of that kind is in it"
)
_FOLLOWS = "if it is not the first: it follows from an earlier difference"
USUAL_CAUSES: Mapping[Sort, tuple[str, ...]] = {
    "chain": (_BY_HAND, "two recorders wrote into one folder"),
    "envelope": (_BY_HAND, "a service ran twice at a time and was not fenced out: this would be a bug, please report it"),
    "unreadable": (_BY_HAND, "it was written by another version of swingshift, with kinds or fields that this one does not have"),
    "tail": ("entries at the end were removed", "the folder was copied while the run went on: copy it again, or leave summary.json out"),
    "decision": (
        "the decision, or a fact before it that it rests on, was changed by hand: a break of the chain near it says so",
        "the recorded code had changes that its digest does not show: another Python, or another version of a package",
        _UNSTABLE,
        _FOLLOWS,
    ),
    "missing": (
        "a fact before it was changed or the decision was removed by hand: a break of the chain near it says so",
        _UNSTABLE,
        _FOLLOWS,
    ),
    "confused": (_BY_HAND, "a bug in the core, if nothing else is found: please report it with the recording"),
    "invariant": (_BY_HAND, "a bug in a service, if nothing else is found: please report it with the recording"),
    "payload": (
        "it was gone from the server before the archiver got it: its log has a warning with that name",
        "payloads.sqlite was changed by hand, or copied before events.sqlite was",
        "the disk is at fault",
    ),
    "snapshot": (
        "the snapshot was changed by hand",
        _UNSTABLE,
        "the cure, whatever it was: `DELETE FROM snapshots` in events.sqlite; they are made again from the entries",
    ),
    "weights": ("the file was changed or replaced after it was written", "the folder was copied in part", "the disk is at fault"),
}
"""What a difference of each sort mostly comes from, the likeliest first."""
OTHER_CODE = "the code of the service was changed since: the differences are what the code of this checkout would have done"


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field, as a path of names and numbers, with both sides in words; empty: it is not there."""

    path: str
    recorded: str
    expected: str


@dataclass(frozen=True, slots=True)
class Moment:
    """The decision of a core that is not as recorded."""

    decided_at: int
    """Position of the recorded decision; 0: none is recorded."""
    epoch: int
    """Incarnation of the service."""
    recorded_code: str
    our_code: str
    """Digests of the code that decided then, and of this checkout's."""
    state: tuple[str, ...] = ()
    """What the core knew before it decided, in lines; only the first differences have it."""


@dataclass
class Incarnation:
    """One that ran other code than this checkout's."""

    source: str
    epoch: int
    recorded_code: str
    our_code: str
    num_differences: int = 0
    """What this checkout's code would have decided differently."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be. `position` is the entry where it shows (for a decision: its cause)."""

    position: int
    source: str
    sort: Sort
    what: str
    recorded: str = ""
    expected: str = ""
    fields: tuple[FieldDifference, ...] = ()
    moment: Moment | None = None

    def __str__(self) -> str:
        sides = f"\n  recorded: {self.recorded}\n  expected: {self.expected}" if self.recorded or self.expected else ""
        return f"position {self.position}, {self.source}: {self.what}{sides}"


@dataclass
class Report:
    """What a verification found. `passed` ignores the differences of other code."""

    entries: int = 0
    decisions: int = 0
    payloads: int = 0
    """Payloads that were compared with what the entries say of them."""
    unchecked_payloads: int = 0
    """Payloads that the entries name and that could not be looked for: none are recorded."""
    weights: int = 0
    """Files of weights and checkpoints that were compared with their digests."""
    snapshots: int = 0
    """Snapshots of this checkout's code that were compared with what the entries give."""
    differences: list[Difference] = field(default_factory=list)
    other_code: list[Difference] = field(default_factory=list)
    num_differences: int = 0
    """All of them; of many only the first are kept."""
    num_other_code: int = 0
    other_incarnations: list[Incarnation] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.num_differences == 0

    def add(self, difference: Difference) -> None:
        """Notes a difference that fails the verification."""
        self.num_differences += 1
        if len(self.differences) < MOST_KEPT:
            self.differences.append(difference)

    def add_other_code(self, difference: Difference) -> None:
        """Notes what this checkout's code would have done differently from the code that ran."""
        self.num_other_code += 1
        if len(self.other_code) < MOST_KEPT:
            self.other_code.append(difference)


def field_differences(recorded: Event, expected: Event) -> tuple[FieldDifference, ...]:
    """Only what differs; nothing for events of different kinds."""
    if type(recorded) is not type(expected):
        return ()
    return tuple(_compare("", recorded.model_dump(), expected.model_dump()))


def _compare(path: str, recorded: object, expected: object) -> list[FieldDifference]:
    if recorded == expected:
        return []
    if isinstance(recorded, dict) and isinstance(expected, dict):
        keys = [*recorded, *(key for key in expected if key not in recorded)]
        return [found for key in keys for found in _compare_part(f"{path}.{key}" if path else str(key), recorded, expected, key)]
    if _is_list(recorded) and _is_list(expected) and len(recorded) == len(expected):
        pairs = enumerate(zip(recorded, expected, strict=True))
        return [found for index, (left, right) in pairs for found in _compare(f"{path}[{index}]", left, right)]
    return [FieldDifference(path, repr(recorded), repr(expected))]


def _compare_part(path: str, recorded: dict[object, object], expected: dict[object, object], key: object) -> list[FieldDifference]:
    if key in recorded and key in expected:
        return _compare(path, recorded[key], expected[key])
    return [FieldDifference(path, repr(recorded[key]) if key in recorded else "", repr(expected[key]) if key in expected else "")]


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)
