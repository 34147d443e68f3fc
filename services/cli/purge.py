"""`swingshift purge RUN`: deletes what a server has of a run."""

from __future__ import annotations

from pathlib import Path

import typer

from bus.connection import Connection
from bus.errors import ConfigError, LogMissing
from bus.runs import living_services, purge, run_keys
from bus.wire import without_password
from services.cli.mistakes import FAILED, mistakes_explained
from services.cli.source import find
from services.launcher.folders import remove_shm_folder
from services.telling import Telling

SAY_EVERY_S = 2.0


def purge_command(named: str, redis: str | None, runs: Path, *, yes: bool, force: bool) -> None:
    """Deletes the run's keys, and what it left in shared memory, after asking; refuses while a service of it is alive, unless `force`."""
    with mistakes_explained():
        found = find(named, runs, redis)
        if found.url is None:
            raise ConfigError(f"run {found.run} has no server that is known: name it with --redis URL")
        where = without_password(found.url)
        connection = Connection(found.url)
        try:
            keys = run_keys(connection, found.run)
            if not keys:
                raise LogMissing(f"{where} has no run {found.run!r}; `swingshift runs` lists those it has")
            _refuse_living(connection, found.run, force=force)
            _ask(f"delete run {found.run} from {where}: {len(keys)} keys? Its folder stays", yes=yes)
            deleted, freed = purge(connection, found.run, _Progress(len(keys)).say)
            remove_shm_folder(found.run)
        finally:
            connection.close()
        kept = f"its folder {found.folder} is as it was" if found.folder.is_dir() else "it has no folder here"
        typer.echo(f"run {found.run} is deleted from {where}: {deleted} keys, {freed} bytes; {kept}")


def _refuse_living(connection: Connection, run: str, *, force: bool) -> None:
    alive = living_services(connection, run)
    if alive and not force:
        names = ", ".join(f"{service} (epoch {epoch})" for service, epoch in alive.items())
        raise ConfigError(
            f"run {run} is alive: {names}; end it with `swingshift stop {run}`, or delete it under their hands with --force. "
            "A service that was killed shows signs of life for ten seconds more"
        )


def _ask(question: str, *, yes: bool) -> None:
    if not yes and not typer.confirm(question):
        typer.echo("nothing was deleted", err=True)
        raise typer.Exit(FAILED)


class _Progress:
    """Says how far it is when that takes long."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._telling = Telling(SAY_EVERY_S, SAY_EVERY_S)

    def say(self, deleted: int) -> None:
        if self._telling.is_due():
            typer.echo(f"deleted {deleted} of {self._total} keys", err=True)
