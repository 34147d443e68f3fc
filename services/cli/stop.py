"""`swingshift stop RUN`."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from bus.entry import Draft, Producer
from bus.events import StopRequested
from services.cli.mistakes import mistakes_explained
from services.cli.source import find, open_log

OPERATOR = Producer("operator", 0)


def stop_command(named: str, redis: str | None, runs: Path) -> None:
    """Appends the request; the run's services do the rest."""
    with mistakes_explained():
        found = find(named, runs, redis)
        with open_log(found) as log:
            draft = Draft(StopRequested(reason="operator"), derived=False, cause=0, at=time.time_ns())
            position = log.append(OPERATOR, [draft])
        typer.echo(f"run {found.run}: asked to stop (entry {position}); `swingshift tail {named} --follow` shows it end")
