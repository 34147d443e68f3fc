"""What we raise on purpose is told to the user in one message, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from bus.errors import ConfigError, LogMissing, ServerError, SwingshiftError
from services.advice import advice
from services.config import RunConfig

FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130


def show_advice(config: RunConfig) -> None:
    """Tells what is legal and seldom meant."""
    for text in advice(config):
        typer.echo(f"swingshift: warning: {text}", err=True)


@contextmanager
def mistakes_explained() -> Iterator[None]:
    """Exit status 2 for what the user can put right, 1 for other errors of ours."""
    try:
        yield
    except SwingshiftError as error:
        typer.echo(f"swingshift: {error}", err=True)
        raise typer.Exit(MISTAKEN if isinstance(error, ConfigError | LogMissing | ServerError) else FAILED) from error
