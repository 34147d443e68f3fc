"""Waiting for the disk."""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
