"""Logging of a service: one line an event, `time LEVEL logger message`, its fields as key=value in the message."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"


def log_to_stderr(level: int = logging.INFO) -> None:
    """Everything from `level` on goes to stderr, which a launcher keeps in the run's folder."""
    _log_to(logging.StreamHandler(sys.stderr), level)


def log_to_file(path: Path, level: int = logging.INFO) -> None:
    """Everything from `level` on goes to the end of a file: stderr may be a terminal with a live view on it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _log_to(logging.FileHandler(path), level)


def _log_to(handler: logging.Handler, level: int) -> None:
    formatter = logging.Formatter(FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
