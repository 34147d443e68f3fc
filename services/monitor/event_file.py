"""Scalars in a file that TensorBoard reads, written without TensorBoard: importing its writer takes torch along, or a package more.

    file     one record after another:  length u64 ▸ masked CRC of the length u32 ▸ data ▸ masked CRC of the data u32     (little-endian)
    data     a protobuf message `Event`: wall_time 1 (double), step 2 (int64), file_version 3 | summary 5 | session_log 7
    summary  values: tag 1, simple_value 2 (float)

The formats are those of TensorFlow's tfrecord, event.proto and summary.proto, the CRC is Castagnoli's. A test reads files with TensorBoard.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

VERSION = b"brain.Event:2"
_DOUBLE, _VARINT, _BYTES, _FLOAT = 1, 0, 2, 5
_START = 1
"""SessionLog.START: what an earlier file says of this step and of later ones does not count."""


class EventFile:
    """A new file in `folder`, which is made. `first_step`: what older files of the folder have of it, and after it, is replaced."""

    def __init__(self, folder: Path, wall_time: float, first_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("events.out.tfevents.*")))
        # The number: TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{int(wall_time):010d}.{number:04d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("ab")
        self._write(_field(1, _DOUBLE, wall_time) + _field(3, _BYTES, VERSION))
        if first_step > 1:
            session = _field(1, _VARINT, _START)
            self._write(_field(1, _DOUBLE, wall_time) + _field(2, _VARINT, first_step) + _field(7, _BYTES, session))

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def add(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Writes the scalars of a step; they are in the file when this returns."""
        scalars = (_field(1, _BYTES, name.encode()) + _field(2, _FLOAT, value) for name, value in values.items())
        summary = b"".join(_field(1, _BYTES, scalar) for scalar in scalars)
        self._write(_field(1, _DOUBLE, wall_time) + _field(2, _VARINT, step) + _field(5, _BYTES, summary))

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_crc(length) + data + _masked_crc(data))
        self._file.flush()


def _field(number: int, kind: int, value: float | bytes) -> bytes:
    key = _varint(number << 3 | kind)
    if isinstance(value, bytes):
        return key + _varint(len(value)) + value
    if kind == _VARINT:
        return key + _varint(int(value))
    return key + struct.pack("<d" if kind == _DOUBLE else "<f", value)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (0x82F63B78 if row & 1 else 0)
        rows.append(row)
    return tuple(rows)


_CRC = _table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF)
