"""`swingshift policy check FILE [--by POLICIES.py]`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from bus.errors import ConfigError
from policies.check import Decider, Trace, check_decisions
from services.cli.mistakes import FAILED, mistakes_explained


def check_command(file: Path, by: Path | None) -> None:
    """Compares a file of recorded decisions with what the rules decide, or the policies in a file that was written for verl."""
    with mistakes_explained():
        result = check_decisions(_read(file), None if by is None else _deciders(by))
    if result.first is None:
        typer.echo(f"{result.boundaries} boundaries in {result.traces} traces, all as recorded")
        return
    typer.echo(str(result.first))
    typer.echo(f"{result.traces_differing} of {result.traces} traces differ; {result.boundaries} boundaries agree")
    raise typer.Exit(FAILED)


def _deciders(by: Path) -> Callable[[Trace], Decider]:
    from services.policy.verl_check import verl_deciders

    return verl_deciders(str(by), _read(by).decode(errors="replace"))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
