"""The one writer of a recording (bus/recording.py). Each batch of entries is one transaction, on the disk when `append` returns."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from bus import chain
from bus.entry import Entry
from bus.errors import GapError, LogChanged, LogError
from bus.recording import COLUMNS, FILE_NAME, FORMAT, FORMER, Row, former_log_ids, read_meta
from bus.sqlite_files import open_writer, transaction, writing_explained

TABLES = (
    "CREATE TABLE entries(position INTEGER PRIMARY KEY, kind TEXT NOT NULL, version INTEGER NOT NULL, source TEXT NOT NULL, "
    "epoch INTEGER NOT NULL, derived INTEGER NOT NULL, cause INTEGER NOT NULL, at INTEGER NOT NULL, chain TEXT NOT NULL, "
    "body BLOB NOT NULL)",
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
ADDED = (
    "CREATE TABLE IF NOT EXISTS snapshots(source TEXT NOT NULL, code TEXT NOT NULL, position INTEGER NOT NULL, state BLOB NOT NULL, "
    "PRIMARY KEY(source, code, position)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS entries_by_kind ON entries(kind)",
)
"""Also given to a recording that was begun without them."""


class Recorder:
    """Writes a recording; `open` makes one. Not for use by several threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        _, _, self._last_position, self._last_chain = read_meta(connection)

    @classmethod
    def open(cls, folder: Path, run: str, log_id: str) -> Recorder:
        """Goes on with the recording in `folder`, or begins one there.

        Raises LogChanged when it is of another log, ConfigError when it is no recording of this format, DiskError when its disk takes
        nothing for the moment, LogError when it cannot be written.
        """
        path = folder / FILE_NAME
        with writing_explained("the recording cannot be opened for writing:", path):
            connection = open_writer(path)
            try:
                _begin(connection, run, log_id)
                _check_log(path, connection, run, log_id)
                for statement in ADDED:
                    connection.execute(statement)
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
        """Records all of `entries` or none; when it returns they survive a power cut. Raises as `check` and `append_rows` do."""
        rows = [Row.of(entry) for entry in entries]
        self.check(rows)
        self.append_rows(rows)

    def append_rows(self, rows: Sequence[Row]) -> None:
        """The same for rows that were checked. Raises DiskError or LogError when they cannot be written."""
        if not rows:
            return
        what = f"entries {rows[0].position} to {rows[-1].position} cannot be written to"
        with writing_explained(what, self._path), transaction(self._connection):
            self._check_alone()
            self._connection.executemany(f"INSERT INTO entries({COLUMNS}) VALUES ({','.join('?' * len(Row._fields))})", rows)
            _set_meta(self._connection, last_position=str(rows[-1].position), last_chain=rows[-1].chain)
        self._last_position, self._last_chain = rows[-1].position, rows[-1].chain

    def adopt(self, log_id: str) -> None:
        """From here on the recording is of log `log_id`, which was made from what is recorded here. Raises as `append_rows` does."""
        with writing_explained("the log's new identity cannot be written to", self._path), transaction(self._connection):
            self._check_alone()
            current = read_meta(self._connection).log_id
            if log_id != current:
                _set_meta(self._connection, log_id=log_id, **{FORMER: " ".join((*former_log_ids(self._connection), current))})

    def check(self, rows: Sequence[Row]) -> None:
        """Raises GapError or LogChanged when `rows` do not follow on what is recorded."""
        previous = self._last_chain
        for position, row in enumerate(rows, self._last_position + 1):
            if row.position != position:
                raise GapError(f"{self._path} ends at entry {position - 1}, the next one to record is {row.position}: some are missing")
            if row.link(previous) != row.chain:
                raise LogChanged(
                    f"entry {position} has chain {row.chain}, after entry {position - 1} as {self._path} has it that should be "
                    f"{row.link(previous)}: the log was rolled back and went on differently; record it into another folder"
                )
            previous = row.chain

    def _check_alone(self) -> None:
        recorded = read_meta(self._connection).last_position
        if recorded != self._last_position:
            raise LogError(
                f"{self._path} ends at entry {recorded}, this recorder left it at {self._last_position}: "
                "somebody else writes to it; end the other archiver"
            )


def _begin(connection: sqlite3.Connection, run: str, log_id: str) -> None:
    """Makes the tables, if they are not there yet."""
    with transaction(connection):
        if connection.execute("SELECT name FROM sqlite_master").fetchone() is None:
            for table in TABLES:
                connection.execute(table)
            _set_meta(connection, format=FORMAT, run=run, log_id=log_id, last_position="0", last_chain=chain.GENESIS)


def _check_log(path: Path, connection: sqlite3.Connection, run: str, log_id: str) -> None:
    meta = read_meta(connection)
    if (meta.run, meta.log_id) != (run, log_id):
        raise LogChanged(
            f"{path} records log {meta.log_id} of run {meta.run!r}, not log {log_id} of run {run!r}: record into another folder"
        )


def _set_meta(connection: sqlite3.Connection, **values: str) -> None:
    connection.executemany("INSERT OR REPLACE INTO meta(key, value) VALUES (?, ?)", values.items())
