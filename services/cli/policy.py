"""`swingshift policy check FILE`."""

from __future__ import annotations

from pathlib import Path

import typer

from bus.errors import ConfigError
from policies.check import check_decisions
from services.cli.mistakes import FAILED, mistakes_explained


def check_command(file: Path) -> None:
    """Compares a file of recorded decisions with what the rules decide."""
    with mistakes_explained():
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
        result = check_decisions(text)
    if result.first is None:
        typer.echo(f"{result.boundaries} boundaries in {result.traces} traces, all as recorded")
        return
    typer.echo(str(result.first))
    typer.echo(f"{result.traces_differing} of {result.traces} traces differ; {result.boundaries} boundaries agree")
    raise typer.Exit(FAILED)
