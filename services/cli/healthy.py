"""`swingshift healthy SERVICE --run ID`: for health checks, which want an exit status."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from bus.alive import living_epochs
from bus.connection import Connection
from bus.embedded import folder_url
from bus.errors import ConfigError, SwingshiftError
from bus.server import named_server
from bus.wire import without_password
from services.cli.mistakes import FAILED, mistakes_explained
from services.launcher.folders import SERVER


def healthy_command(service: str, run: str, redis: str | None, name: str | None, runs: Path) -> None:
    """Exit status 0 when the service shows a sign of life, 1 when it does not, or nobody can be asked."""
    with mistakes_explained():
        url = named_server(redis, os.environ) or folder_url(runs / run / SERVER)
        if url is None:
            raise ConfigError(f"which server has the log of run {run}? Name it with --redis URL or REDIS_URL")
        source = f"{service}:{name}" if name else service
        connection = Connection(url)
        try:
            epoch = living_epochs(connection, run, [source]).get(source)
        except ConfigError:
            raise
        except SwingshiftError as error:
            typer.echo(f"not healthy: {error}", err=True)
            raise typer.Exit(FAILED) from error
        finally:
            connection.close()
    if epoch is None:
        typer.echo(f"not healthy: {source} of run {run} shows no sign of life on {without_password(url)}", err=True)
        raise typer.Exit(FAILED)
    typer.echo(f"healthy: {source} of run {run}, epoch {epoch}")
