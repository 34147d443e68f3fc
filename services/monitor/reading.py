"""A run's entries in order, for who looks on: as they come, or those that there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from bus.entry import Entry
from bus.events import RunEnded

READ_LIMIT = 1000
BLOCK_MS = 500


class Readable(Protocol):
    """A run's history, or a recording of it."""

    def read(self, after: int, limit: int, block_ms: int = 0) -> Sequence[Entry]:
        """Entries after a position."""


def follow(source: Readable, after: int = 0, *, ended: bool = False) -> Iterator[Entry]:
    """Entries behind a position, as they come, until the run has ended and there are no more. Raises GapError, LogChanged.

    `ended`: it had by that position.
    """
    while True:
        entries = source.read(after, READ_LIMIT, 0 if ended else BLOCK_MS)
        if ended and not entries:
            return
        for entry in entries:
            after = entry.position
            ended = ended or isinstance(entry.event, RunEnded)
            yield entry


def read_all(source: Readable, last: int) -> Iterator[Entry]:
    """Entries up to `last`. Raises GapError, LogChanged."""
    position = 0
    while position < last:
        entries = source.read(position, READ_LIMIT)
        if not entries:
            return
        position = entries[-1].position
        yield from entries
