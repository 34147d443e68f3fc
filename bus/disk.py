"""Waiting for the disk, and what is said when something cannot be written."""

from __future__ import annotations

import os
from pathlib import Path


def free_bytes(place: Path) -> int:
    """What a user may still write on the disk of `place`, or of the nearest folder above it that is there."""
    while not place.exists() and place != place.parent:
        place = place.parent
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


def room(place: Path) -> str:
    """The end of such a message: how much is free there, and what to do."""
    return f"{free_bytes(place)} bytes are free there: make room, or set `folder` to a place on a larger disk"


def flush(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
