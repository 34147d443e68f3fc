"""Where the entries of a run that the user named come from: the server that has it, and its recording."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bus.connection import Connection
from bus.entry import Entry
from bus.errors import ConfigError, LogMissing, ServerAbsent, ServerError
from bus.events import RunEnded
from bus.history import History
from bus.recording import FILE_NAME, Recording, Row
from bus.redis_log import RedisLog
from services.launcher.folders import FoundRun, find_run, named_by
from services.local_settings import INFO
from services.monitor.last_words import ended_words

ARCHIVER_S = 5.0
"""How long somebody who looks waits for an archiver on another host to send what the server has forgotten."""


class Source(Protocol):
    """Entries of one run, to be read only."""

    def last_position(self) -> int:
        """Position of the newest entry."""

    def read(self, after: int, limit: int, block_ms: int = 0) -> Sequence[Entry]:
        """Entries after a position, waiting for them where that makes sense."""

    def read_rows(self, after: int, limit: int, block_ms: int = 0) -> Sequence[Row]:
        """The same as they are stored: for who looks at few of them."""


class Recorded:
    """A recording as a `Source`."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def last_position(self) -> int:
        return self._recording.last_position()

    def read(self, after: int, limit: int, block_ms: int = 0) -> Sequence[Entry]:
        return list(self._recording.entries(after + 1, after + limit))

    def read_rows(self, after: int, limit: int, block_ms: int = 0) -> Sequence[Row]:
        return list(self._recording.rows(after + 1, after + limit))


def find(named: str, runs: Path, redis: str | None) -> FoundRun:
    """The run that the user named. Raises ConfigError."""
    return find_run(named, runs, redis, os.environ)


@contextmanager
def open_source(found: FoundRun) -> Iterator[Source]:
    """The run's log, with what the server has forgotten of it; without a server that has it, its recording.

    Raises ConfigError, LogMissing, ServerError when there is neither.
    """
    recorded = (found.folder / FILE_NAME).is_file()
    if found.url is None and not recorded:
        raise ConfigError(
            f"run {found.run} has no server that is known and no recording in {found.folder}: name its server with --redis URL"
        )
    history = None
    if found.url is not None:
        try:
            history = History.open(found.url, found.run, found.folder, ARCHIVER_S)
        except (LogMissing, ServerError):
            if not recorded:
                raise
    if history is not None:
        with history:
            yield history
        return
    with Recording.open(found.folder) as recording:
        yield Recorded(recording)


def open_log(found: FoundRun) -> RedisLog:
    """The log of a live run, to append to. Raises ConfigError, with how to go on, when the run was cut off; LogMissing, ServerError."""
    if found.url is None:
        raise ConfigError(f"run {found.run} {_how_it_ended(found) or cut_off(found)}")
    try:
        return RedisLog.open(found.url, found.run)
    except ServerAbsent as error:
        if had_its_own_server(found):
            raise ConfigError(f"run {found.run} {_how_it_ended(found) or cut_off(found)}") from error
        raise ServerAbsent(f"{error}; if run {found.run} does not run any more, {_go_on(found)}") from error


def had_its_own_server(found: FoundRun) -> bool:
    """The run was begun here, with an embedded server: where that is gone, nobody but a resumption starts it again."""
    return (found.folder / INFO).is_file() and named_by(found.folder) is None


def cut_off(found: FoundRun) -> str:
    """Said of a run that has not ended and whose server is gone."""
    whose = "its embedded server is gone, and so is who ran it" if had_its_own_server(found) else "its server does not answer"
    return f"was cut off: {whose}; {_go_on(found)}"


def _how_it_ended(found: FoundRun) -> str:
    """As its recording has it; empty if that does not say."""
    if not (found.folder / FILE_NAME).is_file():
        return ""
    with Recording.open(found.folder) as recording:
        row = recording.newest(RunEnded.kind, recording.last_position())
        event = None if row is None else row.entry().event
    return ended_words(event) if isinstance(event, RunEnded) else ""


def _go_on(found: FoundRun) -> str:
    return f"`swingshift run --resume {found.run}` goes on with it"


def server_of(found: FoundRun) -> Connection | None:
    """A connection to the run's server, None when there is none."""
    return None if found.url is None else Connection(found.url)


def first_readable(source: Source, wanted: int) -> int:
    """The position to read after, so that the first entry read is `wanted` or the oldest there is after it."""
    return max(0, min(wanted - 1, source.last_position()))
