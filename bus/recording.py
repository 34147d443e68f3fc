"""A recorded log on disk, to be read: the SQLite file `events.sqlite` in the recording's folder, open to anybody with SQL.

    log ─▶ Recorder (bus/recorder.py) ─▶ events.sqlite ─▶ Recording: rows, entries, also while it grows

    entries   position, kind, version, source, epoch, derived, cause, at, chain, body      one row an entry, body as msgpack
    meta      format, run, log_id, last_position, last_chain                              key and value; changed with the rows

A row keeps the envelope and the body's bytes as they were hashed into the chain, so whatever is changed by SQL shows in the chain.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bus import chain
from bus.codec import decode, encode
from bus.entry import Entry
from bus.errors import CodecError, ConfigError, GapError, LogError

FILE_NAME = "events.sqlite"
FORMAT = "1"


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
        return chain.link(
            previous, self.position, self.kind, self.version, self.source, self.epoch, bool(self.derived), self.cause, self.at, self.body
        )

    def entry(self) -> Entry:
        """The entry. Raises CodecError, naming the position, for an unknown kind, a newer schema or a broken body."""
        try:
            if self.version < 1:
                raise CodecError(f"{self.kind} has schema {self.version}, the first one is 1")
            event = decode(self.kind, self.version, self.body)
        except CodecError as error:
            raise CodecError(f"entry {self.position} cannot be read: {error}") from error
        return Entry(self.position, self.source, self.epoch, bool(self.derived), self.cause, self.at, self.chain, event)


TYPES = dict(zip(Row._fields, (int, str, int, str, int, int, int, int, str, bytes), strict=True))
COLUMNS = ", ".join(Row._fields)


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
        connection = _connect(path)
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

    def last_position(self) -> int:
        """Position of the newest entry that is there, 0 when there is none."""
        with explained(f"{self.path} is damaged"):
            (position,) = self._connection.execute("SELECT COALESCE(MAX(position), 0) FROM entries").fetchone()
            return int(position)

    def rows(self, first: int = 1, last: int | None = None, kinds: Sequence[str] = (), sources: Sequence[str] = ()) -> Iterator[Row]:
        """Rows from position `first` to `last`, in order, of all kinds and sources or of those named. Raises CodecError, LogError."""
        where, values = _conditions(first, last, kinds, sources)
        position = first - 1
        try:
            with closing(self._connection.execute(f"SELECT {COLUMNS} FROM entries WHERE {where} ORDER BY position", values)) as cursor:
                for columns in cursor:
                    row = _row(columns)
                    position = row.position
                    yield row
        except sqlite3.DatabaseError as error:
            raise LogError(f"{self.path} is damaged after entry {position}: {error}") from error

    def entries(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """Entries from position `first` to `last`, in order. Raises CodecError, naming the position, for one that cannot be read."""
        for row in self.rows(first, last):
            yield row.entry()

    def entry(self, position: int) -> Entry:
        """The entry at `position`. Raises GapError when it is not there."""
        for entry in self.entries(position, position):
            return entry
        raise GapError(f"{self.path} has no entry {position}: it has those up to {self.last_position()}")


def _row(columns: tuple[object, ...]) -> Row:
    for (name, kind), value in zip(TYPES.items(), columns, strict=True):
        if not isinstance(value, kind):
            raise CodecError(f"entry {columns[0]} cannot be read: its {name} is {value!r}, {kind.__name__} is expected")
    row = Row(*columns)  # type: ignore[arg-type]
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


def _connect(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. In a folder that cannot be written to, only a file that nobody writes can be read.

    Raises LogError.
    """
    reason = ""
    wal = path.with_name(f"{FILE_NAME}-wal")
    # rw, so that the last one to close it leaves the one file behind, and not SQLite's two others beside it.
    for parameters in ("mode=rw", "mode=ro", "mode=ro&immutable=1"):
        if parameters.endswith("immutable=1") and wal.exists() and wal.stat().st_size:
            break
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{parameters}", uri=True, isolation_level=None)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection
        except sqlite3.DatabaseError as error:
            connection.close()
            reason = str(error)
    raise LogError(f"{path} is damaged, or no recording: {reason}")


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


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raises errors of SQLite and of the file system as LogError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise LogError(f"{what}: {error}") from error
    except OSError as error:
        raise LogError(f"{what}: {error.strerror or error}") from error
