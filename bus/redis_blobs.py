"""Payloads of a run on the Redis server, one key each; see `bus.log.Blobs`.

The digest lies in front of the data, so that a damaged payload is found even by a reader who does not know its entry.
Durable as the log is: a server that keeps its appends in order has the payload whenever it has the entry that names it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.blobs import DIGEST_BYTES, blob_digest
from bus.connection import PATIENCE_S, Connection, persist
from bus.errors import BlobMissing
from bus.keys import Keys


class RedisBlobs:
    """Payloads of one run. Not thread-safe: one client a thread."""

    def __init__(self, url: str, run: str, patience_s: float = PATIENCE_S) -> None:
        self._keys = Keys(run)
        self._connection = Connection(url)
        self._patience_s = patience_s

    def close(self) -> None:
        self._connection.close()

    def put(self, name: str, data: bytes) -> None:
        value = bytes.fromhex(blob_digest(data)) + data
        persist(lambda: self._connection.call("SET", self._keys.blob(name), value), self._patience_s)

    def get(self, name: str) -> bytes:
        value = persist(lambda: self._connection.call("GET", self._keys.blob(name)), self._patience_s)
        if not isinstance(value, bytes):
            raise BlobMissing(
                f"run {self._keys.run}: payload {name!r} is not there: it was removed after its last reader, or never written"
            )
        digest, data = value[:DIGEST_BYTES].hex(), value[DIGEST_BYTES:]
        if digest != blob_digest(data):
            raise BlobMissing(
                f"run {self._keys.run}: payload {name!r} has digest {blob_digest(data)}, it was written with {digest}: it is damaged"
            )
        return data

    def delete(self, names: Sequence[str]) -> None:
        if names:
            keys = [self._keys.blob(name) for name in names]
            persist(lambda: self._connection.call("UNLINK", *keys), self._patience_s)
