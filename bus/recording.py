"""A recorded log on disk, to be read: the SQLite file `events.sqlite` in the recording's folder, open to anybody with SQL.

    log ─▶ Recorder (bus/recorder.py) ─▶ events.sqlite ─▶ Recording: rows, entries, also while it grows

    entries     position, kind, version, source, epoch, derived, cause, at, chain, body    one row an entry, body as msgpack
    meta        format, run, log_id, former_log_ids, last_position, last_chain            key and value; changed with the rows
    snapshots   source, code, position, state                                             a core's state after that entry

A row keeps the envelope and the body's bytes as they were hashed into the chain, so whatever is changed by SQL shows in the chain.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bus import chain
from bus.codec import decode, encode
from bus.entry import Entry
from bus.errors import CodecError, ConfigError, GapError, LogError
from bus.sqlite_files import explained, open_reader

FILE_NAME = "events.sqlite"
FORMAT = "1"
FORMER = "former_log_ids"


class Row(NamedTuple):
    """An entry as it is stored. `derived` is 0 or 1; `body` is the event in msgpack."""

    position: int
    kind: str
    version: int
    source: str
    epoch: int
    derived: int
    cause: int
    at: int
    chain: str
    body: bytes

    @classmethod
    def of(cls, entry: Entry) -> Row:
        """The row that stores `entry`."""
        position, source, epoch, derived, cause, at, digest, event = entry
        return cls(position, event.kind, event.schema_version, source, epoch, int(derived), cause, at, digest, encode(event))

    def link(self, previous: str) -> str:
        """What the chain must be here when it was `previous` at the entry before."""
        position, kind, version, source, epoch, derived, cause, at, _, body = self
        return chain.link(previous, position, kind, version, source, epoch, derived, cause, at, body)

    def entry(self) -> Entry:
        """The entry. Raises CodecError, naming the position, for an unknown kind, a newer schema or a broken body."""
        position, kind, version, source, epoch, derived, cause, at, digest, body = self
        try:
            event = decode(kind, version, body)
        except CodecError as error:
            raise CodecError(f"entry {position} cannot be read: {error}") from error
        return Entry(position, source, epoch, derived == 1, cause, at, digest, event)


TYPES = dict(zip(Row._fields, (int, str, int, str, int, int, int, int, str, bytes), strict=True))
COLUMNS = ", ".join(Row._fields)
_EXPECTED = tuple(TYPES.values())


class Meta(NamedTuple):
    """What is noted down beside the entries."""

    run: str
    log_id: str
    last_position: int
    """Position of the newest entry, 0 before the first."""
    last_chain: str


class Recording:
    """A recording to be read; `open` makes one. Each call sees it as it is at that moment."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.run, self.log_id, _, _ = read_meta(connection)

    @classmethod
    def open(cls, folder: Path) -> Recording:
        """Raises ConfigError when there is no recording in `folder`, or none that this version reads; LogError when it is damaged."""
        path = folder / FILE_NAME
        if not path.is_file():
            raise ConfigError(f"{folder} is no recording: it has no {FILE_NAME}. Name the folder of a run, such as runs/RUN")
        connection = open_reader(path)
        try:
            with explained(f"{path} is damaged, or no recording"):
                return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def meta(self) -> Meta:
        """What is noted down beside the entries. Raises LogError, ConfigError."""
        with explained(f"{self.path} is damaged"):
            return read_meta(self._connection)

    def log_ids(self) -> tuple[str, ...]:
        """The logs that the entries come from, newest last: one that was lost went on in the next one, with the same history."""
        with explained(f"{self.path} is damaged"):
            return (*former_log_ids(self._connection), read_meta(self._connection).log_id)

    def last_position(self) -> int:
        """Position of the newest entry that is there, 0 when there is none."""
        with explained(f"{self.path} is damaged"):
            (position,) = self._connection.execute("SELECT COALESCE(MAX(position), 0) FROM entries").fetchone()
            return int(position)

    def rows(
        self, first: int = 1, last: int | None = None, kinds: Sequence[str] = (), sources: Sequence[str] = ()
    ) -> Generator[Row, None, None]:
        """Rows from position `first` to `last`, in order, of all kinds and sources or of those named. Raises CodecError, LogError."""
        position = first - 1
        while True:
            try:
                for columns in self._select(position + 1, last, kinds, sources):
                    row = checked_row(columns)
                    position = row.position
                    yield row
                return
            except sqlite3.DatabaseError as error:
                if not self._reads_broken_text(error):
                    raise LogError(f"{self.path} is damaged after entry {position}: {error}") from error

    def _select(self, first: int, last: int | None, kinds: Sequence[str], sources: Sequence[str]) -> sqlite3.Cursor:
        where, values = _conditions(first, last, kinds, sources)
        # In the order of the table: of several kinds, an index by kind would have SQLite sort all that it finds.
        table = "entries" if len(kinds) == 1 else "entries NOT INDEXED"
        query = f"SELECT {COLUMNS} FROM {table} WHERE {where} ORDER BY position"
        return self._connection.execute(query, values)

    def _reads_broken_text(self, error: sqlite3.DatabaseError) -> bool:
        """Goes over to reading text that is no UTF-8 as far as it can be read, which takes longer; false when that was not the matter."""
        if self._connection.text_factory is not str or "UTF-8" not in str(error):
            return False
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        return True

    def entries(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """Entries from position `first` to `last`, in order. Raises CodecError, naming the position, for one that cannot be read."""
        for row in self.rows(first, last):
            yield row.entry()

    def answers(self, last: int) -> Iterator[tuple[int, int]]:
        """(cause, position) of every decision up to position `last`, in order, without reading what it says. Raises LogError.

        Rows whose numbers are none are left out: `rows` tells of them.
        """
        with explained(f"{self.path} is damaged"):
            query = "SELECT cause, position FROM entries NOT INDEXED WHERE position <= ? AND derived = 1 AND typeof(cause) = 'integer'"
            yield from self._connection.execute(f"{query} ORDER BY position", (last,))

    def newest(self, kind: str, position: int) -> Row | None:
        """The newest row of a kind at or before `position`. Raises CodecError, LogError."""
        with explained(f"{self.path} is damaged"):
            query = f"SELECT {COLUMNS} FROM entries WHERE kind = ? AND position <= ? ORDER BY position DESC LIMIT 1"
            columns = self._connection.execute(query, (kind, position)).fetchone()
        return None if columns is None else checked_row(columns)

    def epochs(self) -> dict[str, int]:
        """Source -> its newest incarnation, of sources that have some. Raises LogError."""
        with explained(f"{self.path} is damaged"):
            found = self._connection.execute("SELECT source, MAX(epoch) FROM entries GROUP BY source HAVING MAX(epoch) > 0")
            return {str(source): int(epoch) for source, epoch in found}

    def entry(self, position: int) -> Entry:
        """The entry at `position`. Raises GapError when it is not there."""
        for entry in self.entries(position, position):
            return entry
        raise GapError(f"{self.path} has no entry {position}: it has those up to {self.last_position()}")


def checked_row(columns: tuple[object, ...]) -> Row:
    """A row of values that may be anything. Raises CodecError."""
    if tuple(map(type, columns)) != _EXPECTED:
        for (name, kind), value in zip(TYPES.items(), columns, strict=True):
            if not isinstance(value, kind):
                raise CodecError(f"entry {columns[0]} cannot be read: its {name} is {value!r}, {kind.__name__} is expected")
    row = Row._make(columns)
    if row.derived not in (0, 1):
        raise CodecError(f"entry {row.position} cannot be read: its derived is {row.derived}, 0 or 1 is expected")
    return row


def _conditions(first: int, last: int | None, kinds: Sequence[str], sources: Sequence[str]) -> tuple[str, list[int | str]]:
    where: list[str] = ["position >= ?"]
    values: list[int | str] = [first, *kinds, *sources]
    if kinds:
        where.append(f"kind IN ({','.join('?' * len(kinds))})")
    if sources:
        where.append(f"source IN ({','.join('?' * len(sources))})")
    if last is not None:
        where.append("position <= ?")
        values.append(last)
    return " AND ".join(where), values


def read_meta(connection: sqlite3.Connection) -> Meta:
    """What a file notes down beside its entries. Raises ConfigError when that is not what a recorder wrote, sqlite3.DatabaseError."""
    meta = {str(key): str(value) for key, value in connection.execute("SELECT key, value FROM meta")}
    missing = [key for key in ("format", *Meta._fields) if key not in meta]
    if missing:
        raise ConfigError(f"this is no recording: its table meta has no {', '.join(missing)}")
    if meta["format"] != FORMAT:
        raise ConfigError(f"this recording has format {meta['format']}, this version of swingshift reads format {FORMAT}: upgrade it")
    if not meta["last_position"].isdecimal():
        raise ConfigError(f"this recording was changed by hand: its last_position is {meta['last_position']!r}, a number is expected")
    return Meta(meta["run"], meta["log_id"], int(meta["last_position"]), meta["last_chain"])


def former_log_ids(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Logs that were lost and went on in the next one, oldest first. Raises sqlite3.DatabaseError."""
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (FORMER,)).fetchone()
    return tuple(str(found[0]).split()) if found is not None else ()
