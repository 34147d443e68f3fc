"""`swingshift serve monitor`: the live view of a run that others run."""

from __future__ import annotations

import time

import typer

from bus.entry import Entry
from bus.events import RunEnded
from bus.redis_log import RedisLog
from services.monitor.view import LiveView

READ_LIMIT = 1024
BLOCK_MS = 200
AFTER_END_S = 2.0
"""How long last words are waited for."""


def watch_command(url: str, run: str) -> None:
    """Shows the run from its beginning until it has ended."""
    with RedisLog.open(url, run) as log, LiveView() as view:
        position, end_at = 0, float("inf")
        while time.monotonic() < end_at:
            entries = log.read(position, READ_LIMIT, BLOCK_MS)
            for entry in entries:
                view.update(entry)
            if entries:
                position = entries[-1].position
            if end_at == float("inf") and any(map(_is_end, entries)):
                end_at = time.monotonic() + AFTER_END_S
    typer.echo(f"run {run} has ended; its log has {position} entries")


def _is_end(entry: Entry) -> bool:
    return isinstance(entry.event, RunEnded)
