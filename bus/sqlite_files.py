"""What the two files of a recording have in common: how one is opened by its writer and by readers, and what is said when that fails.

A writer commits in WAL mode with a sync each time, so that what it said is recorded survives a power cut; readers see it while it grows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bus.disk import flush, room
from bus.errors import DiskError, LogError

WRITER_PATIENCE_S = 10.0
"""How long a write waits for another writer to be done."""
PAGE_BYTES = 4096
WAL_BYTES = 8 << 20
"""What is written beside the file before it is copied into it, about. More at a time keeps the disk longer from others."""


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. In a folder that cannot be written to, only a file that nobody writes can be read.

    Raises LogError.
    """
    reason = ""
    wal = path.with_name(f"{path.name}-wal")
    # rw, so that the last one to close it leaves the one file behind, and not SQLite's two others beside it.
    for parameters in ("mode=rw", "mode=ro", "mode=ro&immutable=1"):
        if parameters.endswith("immutable=1") and wal.exists() and wal.stat().st_size:
            break
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{parameters}", uri=True, isolation_level=None)
        try:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection
        except sqlite3.DatabaseError as error:
            connection.close()
            reason = str(error)
    raise LogError(f"{path} is damaged, or no recording: {reason}")


def open_writer(path: Path, page_bytes: int = PAGE_BYTES) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return; the file and its folder are made. Raises sqlite3.Error, OSError.

    `page_bytes`: of a file that is made; one that is there keeps its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=WRITER_PATIENCE_S, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size={page_bytes}")
        connection.execute("PRAGMA journal_mode=WAL")
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA wal_autocheckpoint={WAL_BYTES // page_bytes}")
        # FULL: a commit is on the disk when it returns. With NORMAL the newest ones would be lost with the power.
        connection.execute("PRAGMA synchronous=FULL")
        flush(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of what the block writes or, when it raises, nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raises errors of SQLite and of the file system as LogError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise LogError(f"{what}: {error}") from error
    except OSError as error:
        raise LogError(f"{what}: {error.strerror or error}") from error


@contextmanager
def writing_explained(what: str, path: Path) -> Iterator[None]:
    """Raises errors of a writer as LogError with the file; as DiskError, with the room there is, for what may pass."""
    try:
        with explained(f"{what} {path}"):
            yield
    except LogError as error:
        cause = error.__cause__
        if isinstance(cause, OSError | sqlite3.OperationalError):
            raise DiskError(f"{error}; {room(path)}") from cause
        raise error from cause
