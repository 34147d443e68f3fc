"""Whether the snapshots in a recording are the states that its entries give. A wrong one would mislead a successor, or whoever looks.

Only those of this checkout's code are compared, and only those made of this very log: others, and damaged ones, are not taken by anybody.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bus.core import Core
from bus.errors import CodecError
from bus.events import Event
from bus.recording import FILE_NAME
from bus.snapshot import attributes, thaw
from bus.snapshot_table import Snapshot
from bus.sqlite_files import explained, open_reader
from replay.differences import FieldDifference

MOST_FOLLOWED = 20
"""Differences of one snapshot that are named."""
QUERY = "SELECT state FROM snapshots WHERE source = ? AND code = ? AND position = ?"


class RecordedSnapshots:
    """Those of one recording; none, unless `open_snapshots` found a table of them."""

    def __init__(self, connection: sqlite3.Connection | None = None) -> None:
        self._connection = connection

    def positions(self, source: str) -> frozenset[int]:
        """Where some stand of `source`, of whatever code. Raises LogError."""
        if self._connection is None:
            return frozenset()
        with explained("the table of snapshots is damaged"):
            found = self._connection.execute("SELECT DISTINCT position FROM snapshots WHERE source = ?", (source,))
            return frozenset(position for (position,) in found)

    def get(self, source: str, code: str, position: int) -> Snapshot | None:
        """The one of this code there, if it is of this very log. Raises CodecError when it cannot be read, LogError."""
        if self._connection is None:
            return None
        with explained("the table of snapshots is damaged"):
            row = self._connection.execute(QUERY, (source, code, position)).fetchone()
            if row is None:
                return None
            if not isinstance(row[0], bytes):
                raise CodecError(f"the snapshot of {source} at {position} is no bytes")
            snapshot = Snapshot.unpack(source, code, position, row[0])
            through = self._connection.execute("SELECT chain FROM entries WHERE position = ?", (snapshot.through,)).fetchone()
        return snapshot if through == (snapshot.chain,) else None


@contextmanager
def open_snapshots(folder: Path) -> Iterator[RecordedSnapshots]:
    """Those in `folder`, to be read only. Raises LogError."""
    connection = open_reader(folder / FILE_NAME)
    try:
        with explained(f"{folder / FILE_NAME} is damaged"):
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'snapshots'").fetchone() is not None
        yield RecordedSnapshots(connection if there else None)
    finally:
        connection.close()


def snapshot_differences(snapshot: Snapshot, core: Core, fresh: Core) -> tuple[FieldDifference, ...]:
    """What the snapshot has that `core` has not, or otherwise. Raises CodecError when it is not of such a core."""
    return tuple(_Comparison().compare("", thaw(snapshot.core, fresh), core))[:MOST_FOLLOWED]


class _Comparison:
    """Walks two states side by side; which parts are one object twice does not matter, only what they say."""

    def __init__(self) -> None:
        self._met: set[tuple[int, int]] = set()

    def compare(self, path: str, kept: object, folded: object) -> Iterator[FieldDifference]:
        if type(kept) is not type(folded):
            yield FieldDifference(path, repr(kept), repr(folded))
        elif isinstance(kept, Event) or kept is None or isinstance(kept, str | bytes | int | float):
            if kept != folded:
                yield FieldDifference(path, repr(kept), repr(folded))
        elif (id(kept), id(folded)) not in self._met:
            self._met.add((id(kept), id(folded)))
            yield from self._parts(path, kept, folded)

    def _parts(self, path: str, kept: object, folded: object) -> Iterator[FieldDifference]:
        if isinstance(kept, dict) and isinstance(folded, dict):
            if list(kept) != list(folded):
                yield FieldDifference(f"{path}, its keys", repr(list(kept)), repr(list(folded)))
                return
            for key, value in kept.items():
                yield from self.compare(f"{path}[{key!r}]", value, folded[key])
        elif isinstance(kept, list | tuple | deque) and isinstance(folded, list | tuple | deque):
            yield from self._items(path, kept, folded)
        else:
            ours = attributes(folded)
            for name, value in attributes(kept).items():
                yield from self.compare(f"{path}.{name}" if path else name, value, ours.get(name))

    def _items(self, path: str, kept: Sequence[object], folded: Sequence[object]) -> Iterator[FieldDifference]:
        if len(kept) != len(folded):
            yield FieldDifference(f"{path}, its length", str(len(kept)), str(len(folded)))
            return
        for index, (one, other) in enumerate(zip(kept, folded, strict=True)):
            yield from self.compare(f"{path}[{index}]", one, other)
