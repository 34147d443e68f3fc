"""The newest snapshot of each core of a run, on the Redis server: the archiver copies them, a successor of the service begins from its own.

shell ─ put(snapshot), once in some thousand entries ─▶ hash `snapshots`: source ─▶ position, code, state ─▶ archiver, successor
"""

from __future__ import annotations

from typing import cast

import msgpack

from bus.connection import Connection
from bus.errors import CodecError
from bus.keys import Keys
from bus.snapshot_table import Snapshot
from bus.wire import Reply


class RedisSnapshots:
    """Snapshots of one run. One try a call, for they only save time. Not thread-safe: one client a thread."""

    def __init__(self, url: str, run: str) -> None:
        self._key = Keys(run).snapshots
        self._connection = Connection(url)

    def close(self) -> None:
        self._connection.close()

    def put(self, snapshot: Snapshot) -> None:
        """Replaces the one of the same source. Raises LogUnavailable, ServerError."""
        value = msgpack.packb([snapshot.position, snapshot.code, snapshot.pack()])
        self._connection.call("HSET", self._key, snapshot.source, bytes(value))

    def get(self, source: str) -> Snapshot | None:
        """The newest one of `source`. Raises LogUnavailable, ServerError, CodecError."""
        value = self._connection.call("HGET", self._key, source)
        return None if value is None else _unpack(source, value)

    def sizes(self) -> dict[str, int]:
        """Source -> bytes of its newest one, which are those of the state, about. Raises LogUnavailable, ServerError."""
        sources = cast("list[bytes]", self._connection.call("HKEYS", self._key))
        return {source.decode(): cast(int, self._connection.call("HSTRLEN", self._key, source)) for source in sources}


def _unpack(source: str, value: Reply) -> Snapshot:
    try:
        position, code, state = msgpack.unpackb(cast(bytes, value))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"the snapshot of {source} on the server cannot be read: {error}") from error
    return Snapshot.unpack(source, str(code), int(position), state)
