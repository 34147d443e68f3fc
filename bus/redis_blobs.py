"""Payloads of a run on the Redis server, one key each; see `bus.log.Blobs`.

The digest lies in front of the data, so that a damaged payload is found even by a reader who does not know its entry.
Durable as the log is: a server that keeps its appends in order has the payload whenever it has the entry that names it.

    MULTI ─ count.lua: names and lengths, by which a retry is known ─ MSET: names and values ─ EXEC          all of it or nothing

The script gets no values, for Lua copies what it gets, and what it hands on once more: up to three times the work for a large one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import cast

from bus.blobs import DIGEST_BYTES, TOGETHER_BYTES, blob_digest
from bus.connection import Connection, Script
from bus.errors import BlobMissing
from bus.events import BlobRef
from bus.keys import Keys
from bus.patience import PATIENCE_S, persist
from bus.wire import Argument, Reply

COUNT = Script.load("count.lua")
FORGET = Script.load("forget.lua")
KEY_BYTES = 96
"""What a server needs for a key besides its name and value, about."""
MOST_KEYS = 100
"""Payloads written in one call, which have at most TOGETHER_BYTES, but for a single one."""
MOST_REMOVED = 40
"""In one call: 4 us of Redis each and 12 of Valkey, during which the server answers nobody else."""


class RedisBlobs:
    """Payloads of one run. Not thread-safe: one client a thread."""

    def __init__(self, url: str, run: str, patience_s: float = PATIENCE_S) -> None:
        self._keys = Keys(run)
        self._connection = Connection(url)
        self._patience_s = patience_s

    def close(self) -> None:
        self._connection.close()

    def put(self, name: str, data: bytes) -> None:
        self._put({name: data})

    def put_many(self, payloads: Mapping[str, bytes]) -> None:
        for some in portions(payloads):
            self._put(some)

    def _put(self, payloads: Mapping[str, bytes]) -> None:
        commands = storing(self._keys.size, as_stored(self._keys, payloads))
        persist(lambda: self._connection.transact(*commands), self._patience_s)

    def get(self, name: str) -> bytes:
        value = persist(lambda: self._connection.call("GET", self._keys.blob(name)), self._patience_s)
        if not isinstance(value, bytes):
            raise BlobMissing(
                f"run {self._keys.run}: payload {name!r} is not there: it was removed after its last reader, or never written"
            )
        digest, data = _split(value)
        if digest != blob_digest(data):
            raise BlobMissing(
                f"run {self._keys.run}: payload {name!r} has digest {blob_digest(data)}, it was written with {digest}: it is damaged"
            )
        return data

    def get_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Those of `names` that are there and whole. The answer is as large as all of them together."""
        found = {name: _split(value) for name, value in self._values(names)}
        return {name: data for name, (digest, data) in found.items() if digest == blob_digest(data)}

    def get_refs(self, refs: Sequence[BlobRef]) -> dict[str, bytes]:
        """By name, those that are there and have the digest that `refs` say. The answer is as large as all of them together."""
        wanted = {ref.name: ref.digest for ref in refs}
        found = {name: value[DIGEST_BYTES:] for name, value in self._values(list(wanted))}
        return {name: data for name, data in found.items() if wanted[name] == blob_digest(data)}

    def _values(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        if not names:
            return []
        keys = [self._keys.blob(name) for name in names]
        values = cast("list[Reply]", persist(lambda: self._connection.call("MGET", *keys), self._patience_s))
        return [(name, value) for name, value in zip(names, values, strict=True) if isinstance(value, bytes)]

    def delete(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), MOST_REMOVED):
            self._forget([self._keys.blob(name) for name in names[first : first + MOST_REMOVED]])

    def _forget(self, keys: Sequence[str]) -> None:
        persist(lambda: self._connection.run(FORGET, [self._keys.size, *keys], [KEY_BYTES]), self._patience_s)


def storing(size: str, values: Mapping[str, bytes]) -> Sequence[Sequence[Argument]]:
    """The commands that count values and store them under their keys, for one `Connection.transact`.

    The script's text goes along: that a server does not know a digest is found only when the values are stored all the same.
    """
    pairs: Iterator[Argument] = chain.from_iterable(values.items())
    return ("EVAL", COUNT.text, 1 + len(values), size, *values, KEY_BYTES, *map(len, values.values())), ("MSET", *pairs)


def as_stored(keys: Keys, payloads: Mapping[str, bytes]) -> dict[str, bytes]:
    """Payloads as they lie on the server, under their keys."""
    return {keys.blob(name): bytes.fromhex(blob_digest(data)) + data for name, data in payloads.items()}


def portions(payloads: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Of payloads, as many at a time as are written in one call."""
    some: dict[str, bytes] = {}
    num_bytes = 0
    for name, data in payloads.items():
        if some and (len(some) == MOST_KEYS or num_bytes + len(data) > TOGETHER_BYTES):
            yield some
            some, num_bytes = {}, 0
        some[name] = data
        num_bytes += len(data)
    if some:
        yield some


def _split(value: bytes) -> tuple[str, bytes]:
    """Digest and data."""
    return value[:DIGEST_BYTES].hex(), value[DIGEST_BYTES:]
