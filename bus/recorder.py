"""The one writer of a recording (bus/recording.py). Each batch of entries is one transaction, on the disk when `append` returns."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from bus import chain
from bus.disk import room
from bus.entry import Entry
from bus.errors import GapError, LogChanged, LogError
from bus.recording import COLUMNS, FILE_NAME, FORMAT, Row, explained, read_meta

WRITER_PATIENCE_S = 10.0
"""How long a write waits for another writer to be done."""

TABLES = (
    "CREATE TABLE entries(position INTEGER PRIMARY KEY, kind TEXT NOT NULL, version INTEGER NOT NULL, source TEXT NOT NULL, "
    "epoch INTEGER NOT NULL, derived INTEGER NOT NULL, cause INTEGER NOT NULL, at INTEGER NOT NULL, chain TEXT NOT NULL, "
    "body BLOB NOT NULL)",
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)


class Recorder:
    """Writes a recording; `open` makes one. Not for use by several threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        _, _, self._last_position, self._last_chain = read_meta(connection)

    @classmethod
    def open(cls, folder: Path, run: str, log_id: str) -> Recorder:
        """Goes on with the recording in `folder`, or begins one there.

        Raises LogChanged when it is of another log, ConfigError when it is no recording of this format, LogError when it cannot be written.
        """
        path = folder / FILE_NAME
        with _explained("the recording cannot be opened for writing:", path):
            folder.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=WRITER_PATIENCE_S, isolation_level=None)
            try:
                _begin(connection, run, log_id)
                _sync_folder(folder)
                _check_log(path, connection, run, log_id)
                return cls(path, connection)
            except BaseException:
                connection.close()
                raise

    @property
    def last_position(self) -> int:
        """Position of the newest entry that is durably recorded, 0 before the first."""
        return self._last_position

    @property
    def last_chain(self) -> str:
        """Chain of that entry."""
        return self._last_chain

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def append(self, entries: Sequence[Entry]) -> None:
        """Records all of `entries` or none; when it returns they survive a power cut.

        Raises GapError or LogChanged when they do not follow on what is recorded, LogError when they cannot be written.
        """
        if not entries:
            return
        rows = self._checked(entries)
        with _explained(f"entries {rows[0].position} to {rows[-1].position} cannot be written to", self._path), self._transaction():
            recorded = read_meta(self._connection).last_position
            if recorded != self._last_position:
                raise LogError(
                    f"{self._path} ends at entry {recorded}, this recorder left it at {self._last_position}: "
                    "somebody else writes to it; end the other archiver"
                )
            self._connection.executemany(f"INSERT INTO entries({COLUMNS}) VALUES ({','.join('?' * len(Row._fields))})", rows)
            _set_meta(self._connection, last_position=str(rows[-1].position), last_chain=rows[-1].chain)
        self._last_position, self._last_chain = rows[-1].position, rows[-1].chain

    def _checked(self, entries: Sequence[Entry]) -> list[Row]:
        previous, rows = self._last_chain, []
        for position, entry in enumerate(entries, self._last_position + 1):
            if entry.position != position:
                raise GapError(f"{self._path} ends at entry {position - 1}, the next one to record is {entry.position}: some are missing")
            row = Row.of(entry)
            if row.link(previous) != row.chain:
                raise LogChanged(
                    f"entry {position} has chain {row.chain}, after entry {position - 1} as {self._path} has it that should be "
                    f"{row.link(previous)}: the log was rolled back and went on differently; record it into another folder"
                )
            rows.append(row)
            previous = row.chain
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


@contextmanager
def _explained(what: str, path: Path) -> Iterator[None]:
    """Raises errors of SQLite and of the file system as LogError, with the file and how much room there is."""
    try:
        with explained(f"{what} {path}"):
            yield
    except LogError as error:
        cause = error.__cause__
        raise LogError(f"{error}; {room(path)}") if isinstance(cause, OSError | sqlite3.OperationalError) else error from cause


def _begin(connection: sqlite3.Connection, run: str, log_id: str) -> None:
    """Settings of a writer's connection, and the tables, if they are not there yet."""
    connection.execute("PRAGMA journal_mode=WAL")
    # FULL: a commit is on the disk when it returns. With NORMAL the newest ones would be lost with the power.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute("SELECT name FROM sqlite_master").fetchone() is None:
        for table in TABLES:
            connection.execute(table)
        _set_meta(connection, format=FORMAT, run=run, log_id=log_id, last_position="0", last_chain=chain.GENESIS)
    connection.execute("COMMIT")


def _check_log(path: Path, connection: sqlite3.Connection, run: str, log_id: str) -> None:
    meta = read_meta(connection)
    if (meta.run, meta.log_id) != (run, log_id):
        raise LogChanged(
            f"{path} records log {meta.log_id} of run {meta.run!r}, not log {log_id} of run {run!r}: record into another folder"
        )


def _set_meta(connection: sqlite3.Connection, **values: str) -> None:
    connection.executemany("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", values.items())


def _sync_folder(folder: Path) -> None:
    """Makes the file's name durable, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
