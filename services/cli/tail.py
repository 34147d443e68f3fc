"""`swingshift tail RUN`."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import typer

from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import KINDS, RunEnded
from bus.fields import fields_text
from policies.registry import nearest
from services.cli.mistakes import mistakes_explained
from services.cli.source import Source, find, open_source
from services.monitor.reading import follow as following

READ_LIMIT = 512


def tail_command(named: str, redis: str | None, runs: Path, kinds: list[str], number: int, *, follow: bool) -> None:
    """Prints entries, one a line."""
    with mistakes_explained():
        for kind in kinds:
            if kind not in KINDS:
                raise ConfigError(f"there is no kind {kind!r}: did you mean {nearest(kind, tuple(KINDS))!r}?")
        with open_source(find(named, runs, redis)) as source:
            try:
                for entry in _newest(source, kinds, number):
                    _show(entry)
                if follow:
                    _follow(source, kinds)
            except KeyboardInterrupt:
                return


def _newest(source: Source, kinds: list[str], number: int) -> list[Entry]:
    """The last `number` entries of these kinds; goes back as far as it takes."""
    found: list[Entry] = []
    end = source.last_position()
    while end > 0 and len(found) < number:
        start = max(0, end - READ_LIMIT)
        found = [entry for entry in source.read(start, end - start) if not kinds or entry.event.kind in kinds] + found
        end = start
    return found[-number:] if number else []


def _follow(source: Source, kinds: list[str]) -> None:
    """Entries as they come, until the run has ended; also when it had ended before."""
    last = source.last_position()
    ended = any(isinstance(entry.event, RunEnded) for entry in source.read(max(0, last - READ_LIMIT), READ_LIMIT))
    for entry in following(source, last, ended=ended):
        if not kinds or entry.event.kind in kinds:
            _show(entry)


def _show(entry: Entry) -> None:
    line = line_of(entry)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(line)
    typer.echo(line if len(line) <= width else f"{line[: width - 1]}…")


def line_of(entry: Entry) -> str:
    """Position, time, source/epoch, cause, kind and fields; a decision has a `*`."""
    moment = datetime.fromtimestamp(entry.at / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
    mark = "*" if entry.derived else " "
    place = f"{entry.position:>7} {moment} {f'{entry.source}/{entry.epoch}':<16} {entry.cause:>7}"
    return f"{place} {mark}{entry.event.kind} {fields_text(entry.event)}"
