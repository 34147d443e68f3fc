"""Snapshots of cores in a recording: the table `snapshots` of `events.sqlite`, so that any position of a long log opens at once.

    snapshots   source, code, position, state      the state of `source` at `position`, of use to the same code only

They are no part of the record: whatever is in them follows from the entries, and who has doubts deletes them all. A snapshot carries the
chain behind the last entry that is in it, so one that was made of another log, of a tail that was lost, or of entries that were changed
since, is not taken.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType

import msgpack

from bus.errors import CodecError, ConfigError
from bus.events import PolicyAttached
from bus.recording import FILE_NAME
from bus.sqlite_files import explained, transaction

SNAPSHOT_EVERY = 5_000
"""Entries between two snapshots of one core: so few that they are folded in a fraction of a second."""
PATIENCE_S = 5.0
"""How long a write waits for the archiver to be done with its own."""
FORMAT = 1
TABLE = (
    "CREATE TABLE IF NOT EXISTS snapshots(source TEXT NOT NULL, code TEXT NOT NULL, position INTEGER NOT NULL, state BLOB NOT NULL, "
    "PRIMARY KEY(source, code, position)) WITHOUT ROWID"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A core's state after all entries up to `position`, and all its decisions on them."""

    source: str
    code: str
    """`core_code` of what it is of."""
    position: int
    through: int
    """An entry at or after the last of those decisions: a log that has lost it has nothing to do with this state."""
    chain: str
    """The log's chain at `through`."""
    core: bytes
    """The frozen core (bus.snapshot)."""
    decided_at: Mapping[str, int] | None = None
    """What a host remembers beside its core (bus.host), for a successor; None: it was made by a replay, and is for replays only."""

    def pack(self) -> bytes:
        """Everything but source, code and position."""
        return zlib.compress(msgpack.packb([FORMAT, self.through, self.chain, self.core, self.decided_at]), 1)

    @classmethod
    def unpack(cls, source: str, code: str, position: int, state: bytes) -> Snapshot:
        """Raises CodecError for a state that `pack` did not write."""
        try:
            known, through, chain, core, decided_at = msgpack.unpackb(zlib.decompress(state))
            if known != FORMAT or not isinstance(through, int) or not isinstance(chain, str) or not isinstance(core, bytes):
                raise ValueError(f"its format is {known!r}, {FORMAT} is expected")
            decided_at = None if decided_at is None else {str(kind): int(place) for kind, place in decided_at.items()}
        except (ValueError, TypeError, AttributeError, zlib.error, msgpack.UnpackException) as error:
            raise CodecError(f"the snapshot of {source} at {position} cannot be read: {error}") from error
        return cls(source, code, position, through, chain, core, decided_at)


def core_code(code: str, attached: PolicyAttached | None = None) -> str:
    """What a core's snapshots are kept under: the digest of its code, and of a policy also its settings, which are a part of its state."""
    if attached is None:
        return code
    settings = json.dumps([attached.name, attached.mode, attached.params], sort_keys=True)
    return f"{code}-{blake2b(settings.encode(), digest_size=8).hexdigest()}"


class SnapshotTable:
    """The snapshots of one recording; `open` makes one. Not for use by several threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, there: bool, writable: bool) -> None:
        self._path = path
        self._connection = connection
        self._there = there
        self.writable = writable
        """Snapshots can be put into it."""

    @classmethod
    def open(cls, folder: Path) -> SnapshotTable:
        """That of the recording in `folder`, which must be there; one that cannot be written to is read. Raises LogError."""
        path = folder / FILE_NAME
        if not path.is_file():
            raise ConfigError(f"{folder} is no recording: it has no {FILE_NAME}. Name the folder of a run, such as runs/RUN")
        with explained(f"{path} is damaged, or no recording"):
            connection, writable = _connect(path)
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'snapshots'").fetchone() is not None
            return cls(path, connection, there=there, writable=writable)

    def __enter__(self) -> SnapshotTable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def position_before(self, source: str, code: str, position: int) -> int | None:
        """Where the newest one at or before `position` stands. Raises LogError."""
        if not self._there:
            return None
        query = "SELECT MAX(position) FROM snapshots WHERE source = ? AND code = ? AND position <= ?"
        with explained(f"{self._path} is damaged"):
            (found,) = self._connection.execute(query, (source, code, position)).fetchone()
        return None if found is None else int(found)

    def get(self, source: str, code: str, position: int) -> Snapshot:
        """The one at `position`. Raises LogError; CodecError when it is not there or damaged."""
        query = "SELECT state FROM snapshots WHERE source = ? AND code = ? AND position = ?"
        with explained(f"{self._path} is damaged"):
            row = self._connection.execute(query, (source, code, position)).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise CodecError(f"the snapshot of {source} at {position} is not there, or is no bytes")
        return Snapshot.unpack(source, code, position, row[0])

    def put(self, snapshots: Iterable[Snapshot]) -> None:
        """Adds snapshots, or replaces them. Raises LogError when they cannot be written."""
        rows: Sequence[tuple[str, str, int, bytes]] = [(each.source, each.code, each.position, each.pack()) for each in snapshots]
        with explained(f"snapshots cannot be written to {self._path}"), transaction(self._connection):
            self._connection.executemany("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", rows)


def _connect(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection, and whether it can write."""
    reason: sqlite3.Error | None = None
    for parameters, writable in (("mode=rw", True), ("mode=ro", False), ("mode=ro&immutable=1", False)):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{parameters}", uri=True, timeout=PATIENCE_S, isolation_level=None)
        try:
            connection.execute(TABLE if writable else "SELECT 1 FROM sqlite_master").fetchone()
            return connection, writable
        except sqlite3.DatabaseError as error:
            connection.close()
            reason = error
    assert reason is not None
    raise reason
