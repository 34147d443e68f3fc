"""Positions in a long array as small numbers: the distance of each from the one before, in one or two bytes.

    positions  3, 4, 300   ─▶   gaps  3, 0, 255, 40        (one byte each: 255 stands for 255 places without a position)

About as short as positions that are spread at random can be written without an entropy coder, and quick to read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Gaps = NDArray[np.unsignedinteger]
"""Of one or two bytes each."""
Positions = NDArray[np.int64]

CHUNK = 1 << 22
"""Positions, or gaps, that are worked on at a time: what is needed meanwhile stays small beside the weights."""


def most_bytes(places: int, count: int, width: int) -> int:
    """No `count` positions among `places` take more bytes than this in gaps of `width` bytes."""
    return width * (count + places // _limit(width))


def encode(positions: Positions, code: type[np.uint8] | type[np.uint16]) -> Gaps:
    """Ascending positions, as gaps."""
    limit = int(np.iinfo(code).max)
    parts: list[Gaps] = []
    before = -1
    for start in range(0, positions.size, CHUNK):
        chunk = positions[start : start + CHUNK]
        skips, rests = np.divmod(np.diff(chunk, prepend=before) - 1, limit)
        part: Gaps = np.full(int(skips.sum()) + chunk.size, limit, dtype=code)
        part[np.cumsum(skips + 1) - 1] = rests
        parts.append(part)
        before = int(chunk[-1])
    return np.concatenate(parts) if parts else np.empty(0, dtype=code)


def decode(gaps: Gaps) -> Iterator[Positions]:
    """The positions, ascending, some at a time."""
    limit = np.iinfo(gaps.dtype).max
    reached = -1
    for start in range(0, gaps.size, CHUNK):
        part = gaps[start : start + CHUNK]
        ends = part != limit
        places = np.cumsum(part.astype(np.int64) + ends) + reached
        reached = int(places[-1])
        yield places[ends]


def _limit(width: int) -> int:
    return int((1 << 8 * width) - 1)
