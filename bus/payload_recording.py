"""The payloads of a recorded run on disk: the SQLite file `payloads.sqlite` beside `events.sqlite`, open to anybody with SQL.

    server ─▶ PayloadRecorder ─▶ payloads.sqlite ─▶ PayloadRecording: a payload by its name, also while the file grows

    payloads   name, digest, num_bytes, zstd          digest (BLAKE2b with 128 bits, in hex) and size are those of the data before zstd

A payload is durable here before the entry that names it is durable in `events.sqlite`. Who copies the two while they grow copies the
events first: then every payload that they name is in the copy, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import zstandard

from bus.blobs import blob_digest, blob_ref, get_blob
from bus.errors import BlobMissing, ConfigError
from bus.events import BlobRef
from bus.sqlite_files import explained, open_reader, open_writer, transaction, writing_explained

FILE_NAME = "payloads.sqlite"
FORMAT = 1
LEVEL = 1
"""Of zstd: on tokens and log-probabilities 3 takes half as long again and saves nothing (0.1 % of random ones)."""
PAGE_BYTES = 8 << 10
"""Of a new file. On SQLite's usual 4 KB a payload of 20 KB has five pages, each of which is written by itself, twice. One whose row takes
between half a page and a whole one leaves the rest of it empty, so larger pages cost room: 20 % at 16 KB with payloads of 12 KB.
"""

TABLE = "CREATE TABLE IF NOT EXISTS payloads(name TEXT PRIMARY KEY, digest TEXT NOT NULL, num_bytes INTEGER NOT NULL, zstd BLOB NOT NULL)"


class PackedPayload(NamedTuple):
    """A row of the table."""

    name: str
    digest: str
    num_bytes: int
    zstd: bytes


class PayloadRecorder:
    """Writes the payloads of one run; `open` makes one. Not for use by several threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._compressor = zstandard.ZstdCompressor(LEVEL)

    @classmethod
    def open(cls, folder: Path) -> PayloadRecorder:
        """Goes on with the payloads in `folder`, or begins there.

        Raises ConfigError for a file of another format, DiskError when the disk takes nothing for the moment, LogError.
        """
        path = folder / FILE_NAME
        with writing_explained("the recording cannot be opened for writing:", path):
            connection = open_writer(path, PAGE_BYTES)
            try:
                _begin(path, connection)
                return cls(path, connection)
            except BaseException:
                connection.close()
                raise

    def __enter__(self) -> PayloadRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def put(self, items: Mapping[str, bytes]) -> None:
        """Records all of `items` (name -> data) or none; when it returns they survive a power cut. A name that is there is replaced.

        Raises DiskError, LogError.
        """
        self.put_packed([self.pack(blob_ref(name, data), data) for name, data in items.items()])

    def pack(self, ref: BlobRef, data: bytes) -> PackedPayload:
        """What `put_packed` records of the payload `data`, which is the one that `ref` names."""
        return PackedPayload(ref.name, ref.digest, len(data), self._compressor.compress(data))

    def put_packed(self, payloads: Collection[PackedPayload]) -> None:
        """As `put`, for who has many and does not want to have them all unpacked at a time."""
        if not payloads:
            return
        what = f"{len(payloads)} payloads cannot be written to"
        with writing_explained(what, self._path), transaction(self._connection):
            self._connection.executemany("INSERT OR REPLACE INTO payloads(name, digest, num_bytes, zstd) VALUES (?, ?, ?, ?)", payloads)

    def digest(self, name: str) -> str | None:
        """Digest of the payload that is recorded under `name`, None when there is none. Raises LogError."""
        with explained(f"{self._path} is damaged"):
            found = self._connection.execute("SELECT digest FROM payloads WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])


class PayloadRecording:
    """Recorded payloads to be read, as `bus.log.BlobReader`; `open` makes one. Each call sees them as they are at that moment."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._decompressor = zstandard.ZstdDecompressor()

    @classmethod
    def open(cls, folder: Path) -> PayloadRecording:
        """Raises ConfigError when `folder` has no recorded payloads, or none that this version reads; LogError for a damaged file."""
        path = folder / FILE_NAME
        if not path.is_file():
            raise ConfigError(f"{folder} has no recorded payloads: it has no {FILE_NAME}")
        connection = open_reader(path)
        try:
            with explained(f"{path} is damaged, or no recording"):
                _check_format(path, connection)
            return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> PayloadRecording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def names(self) -> list[str]:
        """Names of all payloads, in alphabetical order. Raises LogError."""
        with explained(f"{self.path} is damaged"):
            return [str(name) for (name,) in self._connection.execute("SELECT name FROM payloads ORDER BY name")]

    def digest(self, name: str) -> str | None:
        """Digest of the payload that is recorded under `name`, None when there is none. Raises LogError."""
        with explained(f"{self.path} is damaged"):
            found = self._connection.execute("SELECT digest FROM payloads WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def get(self, name: str) -> bytes:
        """The payload. Raises BlobMissing when it is not there, or is not what was recorded; LogError when the file cannot be read."""
        with explained(f"{self.path} is damaged"):
            query = "SELECT digest, num_bytes, zstd FROM payloads WHERE name = ?"
            found: tuple[object, object, object] | None = self._connection.execute(query, (name,)).fetchone()
        if found is None:
            raise BlobMissing(f"payload {name!r} is not in {self.path}: it was gone before it was recorded, or was removed from the file")
        digest, num_bytes, compressed = found
        try:
            if not isinstance(compressed, bytes) or not isinstance(num_bytes, int):
                raise BlobMissing(f"payload {name!r} in {self.path} is damaged: its row is not as it was written")
            data = self._decompressor.decompress(compressed, max_output_size=max(1, num_bytes))
        except zstandard.ZstdError as error:
            raise BlobMissing(f"payload {name!r} in {self.path} is damaged: {error}") from error
        if blob_digest(data) != digest or len(data) != num_bytes:
            raise BlobMissing(
                f"payload {name!r} in {self.path} is damaged: it has digest {blob_digest(data)} and {len(data)} bytes, "
                f"it was recorded with {digest} and {num_bytes}"
            )
        return data

    def get_ref(self, ref: BlobRef) -> bytes:
        """The payload that `ref` names. Raises BlobMissing also when another one was recorded under that name."""
        return get_blob(self, ref)


def _begin(path: Path, connection: sqlite3.Connection) -> None:
    """Makes the table, if it is not there yet. Raises ConfigError for a file of another format."""
    with transaction(connection):
        if connection.execute("SELECT name FROM sqlite_master").fetchone() is None:
            connection.execute(TABLE)
            connection.execute(f"PRAGMA user_version={FORMAT}")
    _check_format(path, connection)


def _check_format(path: Path, connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != FORMAT:
        raise ConfigError(f"{path} has format {version}, this version of swingshift reads format {FORMAT}: upgrade it")
