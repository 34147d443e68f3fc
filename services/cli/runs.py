"""`swingshift runs`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from bus.connection import Connection
from bus.runs import list_runs
from bus.server import named_server
from bus.wire import without_password
from services.cli.mistakes import mistakes_explained
from services.launcher.folders import SUMMARY, FoundRun, known_runs


def runs_command(redis: str | None, runs: Path) -> None:
    """Lists the runs with a folder below `runs`, and those on the server that the user named."""
    with mistakes_explained():
        url = named_server(redis, os.environ)
        local = {found.run: found for found in known_runs(runs)}
        on_server = _on_server(url) if url is not None else []
        if not local and not on_server:
            typer.echo(f"no runs in {runs}" + (f" or on {without_password(url)}" if url is not None else ""))
            return
        table = Table("run", "state", "where", box=None)
        for run, found in local.items():
            table.add_row(run, _state(found), str(found.folder) + (f", {without_password(url)}" if url and run in on_server else ""))
        for run in on_server:
            if run not in local:
                table.add_row(run, "on the server", without_password(url or ""))
        Console().print(table)


def _on_server(url: str) -> list[str]:
    connection = Connection(url)
    try:
        return list_runs(connection)
    finally:
        connection.close()


def _state(found: FoundRun) -> str:
    """How it ended, as its summary says; without one it runs, or its supervisor was killed."""
    try:
        summary = json.loads((found.folder / SUMMARY).read_text())
        return str(summary.get("ended") or "ended")
    except FileNotFoundError:
        return "running" if found.url is not None else "unfinished"
    except (OSError, ValueError, AttributeError):
        return "its summary cannot be read"
