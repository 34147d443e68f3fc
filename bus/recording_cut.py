"""Takes back the end of a recording that is not part of the log's history any more; a copy of the whole stays beside it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from bus import chain
from bus.recording import FILE_NAME, read_meta
from bus.sqlite_files import open_writer, transaction, writing_explained


def cut_recording(folder: Path, position: int) -> Path:
    """Leaves the entries up to `position`; returns the file with the copy. Raises DiskError, LogError."""
    path = folder / FILE_NAME
    with writing_explained("the recording cannot be cut:", path), closing(open_writer(path)) as connection:
        meta = read_meta(connection)
        copy = path.with_name(f"{path.stem}-{meta.log_id}-{meta.last_position}{path.suffix}")
        _copy(connection, copy)
        with transaction(connection):
            connection.execute("DELETE FROM entries WHERE position > ?", (position,))
            connection.execute("DELETE FROM snapshots WHERE position > ?", (position,))
            found = connection.execute("SELECT chain FROM entries WHERE position = ?", (position,)).fetchone()
            last = chain.GENESIS if found is None else str(found[0])
            values = (("last_position", str(position)), ("last_chain", last))
            connection.executemany("UPDATE meta SET value = ?2 WHERE key = ?1", values)
    return copy


def _copy(connection: sqlite3.Connection, to: Path) -> None:
    """A copy that is on the disk when this returns, or not there at all."""
    partial = to.with_name(f"{to.name}.partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as target:
        connection.backup(target)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(to)
    descriptor = os.open(to.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
