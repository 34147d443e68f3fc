"""What Ray and its libraries write to the terminal by themselves goes aside, into a file: the terminal has a live view on it.

    our own words ─▶ sys.stderr ─▶ the terminal           Ray's ─▶ descriptor 2 ─▶ kept ─ the run has a folder ─▶ logs/ray.log

Parts of Ray are not in Python, and no setting of theirs keeps all they say off descriptor 2.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TextIO

STDERR = 2
RAYS_LOGGER = "ray"
_PORTION = 1 << 16


class Aside:
    """Within `with`; to enter it once more changes nothing."""

    def __init__(self) -> None:
        self._terminal: int | None = None
        """Another descriptor for what descriptor 2 was."""
        self._ours: TextIO | None = None
        """What sys.stderr was, if it wrote to descriptor 2."""
        self._kept: int | None = None
        """A file without a name, until there is one to write into."""
        self._handlers: list[logging.Handler] = []

    def __enter__(self) -> Aside:
        if self._terminal is not None:
            return self
        try:
            self._terminal = os.dup(STDERR)
        except OSError:
            return self  # there is none
        if _writes_to_stderr(sys.stderr):
            sys.stderr.flush()
            self._ours = sys.stderr
            sys.stderr = io.TextIOWrapper(
                os.fdopen(os.dup(self._terminal), "wb", 0), sys.stderr.encoding, sys.stderr.errors, write_through=True
            )
        with tempfile.TemporaryFile() as kept:
            self._kept = os.dup(kept.fileno())
        os.dup2(self._kept, STDERR)
        self._take_logger()
        return self

    def into(self, path: Path) -> None:
        """From now on it is in a file, at its end, with what was said before."""
        if self._terminal is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.dup2(file, STDERR)
            if self._kept is not None:
                _copy(self._kept, file)
                os.close(self._kept)
                self._kept = None
        finally:
            os.close(file)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._terminal is None:
            return
        os.dup2(self._terminal, STDERR)
        os.close(self._terminal)
        self._terminal = None
        if self._kept is not None:
            os.close(self._kept)
            self._kept = None
        if self._ours is not None:
            sys.stderr, self._ours = self._ours, None
        logging.getLogger(RAYS_LOGGER).handlers[:] = self._handlers

    def _take_logger(self) -> None:
        """Ray's own logger writes to sys.stderr, whichever that is when it does."""
        import ray  # noqa: F401  (makes its logger)

        logger = logging.getLogger(RAYS_LOGGER)
        self._handlers = list(logger.handlers)
        handler = logging.StreamHandler(os.fdopen(STDERR, "w", 1, closefd=False))
        handler.setFormatter(self._handlers[0].formatter if self._handlers else None)
        logger.handlers[:] = [handler]


def _writes_to_stderr(stream: TextIO) -> bool:
    try:
        return stream.fileno() == STDERR
    except (OSError, ValueError):
        return False


def _copy(source: int, target: int) -> None:
    at = 0
    while portion := os.pread(source, _PORTION, at):
        os.write(target, portion)
        at += len(portion)
