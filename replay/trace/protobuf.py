"""Writes protobuf's wire format: enough of it for a trace, where a whole package would be a dependency for five functions.

A field is its number and wire type as a varint, then the value: a varint, 8 bytes, or a length and so many bytes.
Source: protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from functools import cache

VARINT, FIXED64, BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; below zero as 64 bits in two's complement."""
    return SMALL[value] if 0 <= value < len(SMALL) else _varint(value)


def _varint(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


SMALL = tuple(map(_varint, range(4096)))
"""Most that are written are lengths and numbers of names."""


@cache
def _tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def number(field: int, value: int) -> bytes:
    """An int, uint, bool or enum."""
    return _tag(field, VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A fixed64."""
    return _tag(field, FIXED64) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    """A double."""
    return _tag(field, FIXED64) + struct.pack("<d", value)


def block(field: int, value: bytes) -> bytes:
    """Bytes, or a message that was written already."""
    return _tag(field, BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A string; half characters, which UTF-8 cannot hold, become question marks."""
    return block(field, value.encode("utf-8", "replace"))
