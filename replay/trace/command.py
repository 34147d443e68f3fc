"""`swingshift replay trace`: reads a recording and writes a trace."""

from __future__ import annotations

from pathlib import Path

import typer

from bus.errors import ConfigError
from bus.recording import Recording
from replay.bar import Bar
from replay.trace.trace import Effects, draw_trace
from replay.whole import trusted_to_be_whole


def trace_command(folder: Path, path: Path) -> None:
    """Writes the trace of the recording in `folder` and says so. Raises ConfigError, CodecError, LogError."""
    with Bar() as bar:
        entries = write_trace(folder, path, bar)
    typer.echo(f"{path}: {entries:,} entries, {path.stat().st_size / 1e6:.2f} MB; open it in ui.perfetto.dev")


def write_trace(folder: Path, path: Path, bar: Bar) -> int:
    """Writes the trace; returns how many entries it has."""
    effects = Effects()
    with Recording.open(folder) as recording, trusted_to_be_whole(folder):
        last = recording.last_position()
        for row in bar.follow(recording.rows(1, last), "looking for causes", last):
            effects.note(row.position, row.cause)
        try:
            with path.open("wb") as file:
                return draw_trace(bar.follow(recording.entries(1, last), "drawing", last), effects, file)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}; name another file with -o") from error
