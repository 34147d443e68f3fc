"""Naming a payload in an entry, and getting it back only if it is the one that was named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from bus.errors import BlobMissing
from bus.events import BlobRef
from bus.log import BlobReader, Blobs

DIGEST_BYTES = 16
TOGETHER_BYTES = 512 << 10
"""Of payloads asked for in one call, but for a single one that is larger: a server gives much more than that away more slowly."""
MOST_TOGETHER = 256


def blob_ref(name: str, data: bytes) -> BlobRef:
    """What an entry carries of the payload `data` stored under `name`."""
    return BlobRef(name=name, num_bytes=len(data), digest=blob_digest(data))


def blob_digest(data: bytes) -> str:
    """BLAKE2b with 128 bits, in hex."""
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def put_blob(blobs: Blobs, name: str, data: bytes) -> BlobRef:
    """Stores a payload; returns what the entry that is appended next names it by."""
    blobs.put(name, data)
    return blob_ref(name, data)


def get_blob(blobs: BlobReader, ref: BlobRef) -> bytes:
    """The payload that `ref` names. Raises BlobMissing when it is gone, or was replaced by another one."""
    return _named(ref, blobs.get(ref.name))


def get_blobs(blobs: Blobs, refs: Sequence[BlobRef]) -> Iterator[bytes]:
    """The payloads that `refs` name, in their order, several in a call. Raises as `get_blob` does."""
    for some in together(refs, TOGETHER_BYTES):
        found = blobs.get_many([ref.name for ref in some])
        for ref in some:
            data = found.get(ref.name)
            yield get_blob(blobs, ref) if data is None else _named(ref, data)


def together(refs: Iterable[BlobRef], most_bytes: int, most: int = MOST_TOGETHER) -> Iterator[list[BlobRef]]:
    """In their order, as many at a time as have so many bytes and are so many; at least one."""
    some: list[BlobRef] = []
    num_bytes = 0
    for ref in refs:
        if some and (num_bytes + ref.num_bytes > most_bytes or len(some) == most):
            yield some
            some, num_bytes = [], 0
        some.append(ref)
        num_bytes += ref.num_bytes
    if some:
        yield some


def _named(ref: BlobRef, data: bytes) -> bytes:
    digest = blob_digest(data)
    if digest != ref.digest:
        raise BlobMissing(
            f"payload {ref.name!r} has digest {digest} and {len(data)} bytes, the log recorded {ref.digest} and {ref.num_bytes}: "
            "it was replaced or damaged"
        )
    return data
