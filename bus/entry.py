"""One item of a log: an event in its envelope.

`chain` runs through all entries: the digest of the previous entry's chain and of this entry. Whoever knows the last one knows that nothing
before it was changed, removed, swapped or cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bus.events import Event


class Entry(NamedTuple):
    """An event as it stands in the log. Position 1 is the first; `cause` is the position that led to it (0: none)."""

    position: int
    source: str
    """Who appended it: `trainer`, `rollouter`, `controller`, `policy`, `replica:NAME`, `supervisor`, `operator`, …"""
    epoch: int
    """Incarnation of the source."""
    derived: bool
    """Decided by a core from the log; else a fact observed by a shell."""
    cause: int
    at: int
    """Integer nanoseconds of the emitter's clock; comparable only within one source and epoch."""
    chain: str
    event: Event


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry to be appended: what its producer knows of it."""

    event: Event
    derived: bool
    cause: int
    at: int


@dataclass(frozen=True, slots=True)
class Producer:
    """Who appends: its source and the epoch that `Log.attach` gave it. Epoch 0: an operator, who fences nobody and is fenced by nobody."""

    source: str
    epoch: int


def role_of(source: str) -> str:
    """The role in a source's name: `replica:a0` -> `replica`."""
    return source.partition(":")[0]
