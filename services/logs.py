"""Logging of a service: one line an event, `time LEVEL logger message`, its fields as key=value in the message."""

from __future__ import annotations

import logging
import sys
import time

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"


def log_to_stderr(level: int = logging.INFO) -> None:
    """Everything from `level` on goes to stderr, which a launcher keeps in the run's folder."""
    formatter = logging.Formatter(FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
