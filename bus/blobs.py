"""Naming a payload in an entry, and getting it back only if it is the one that was named."""

from __future__ import annotations

from hashlib import blake2b

from bus.errors import BlobMissing
from bus.events import BlobRef
from bus.log import BlobReader, Blobs

DIGEST_BYTES = 16


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
    data = blobs.get(ref.name)
    digest = blob_digest(data)
    if digest != ref.digest:
        raise BlobMissing(
            f"payload {ref.name!r} has digest {digest} and {len(data)} bytes, the log recorded {ref.digest} and {ref.num_bytes}: "
            "it was replaced or damaged"
        )
    return data
