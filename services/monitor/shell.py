"""The monitor's process: shows a run live until it has ended, then its summary. It tells the measures of each step and holds nothing up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from bus.entry import Entry
from bus.errors import ConfigError, GapError
from bus.events import RunEnded, RunPlanned
from bus.log import Log
from bus.recording import FILE_NAME, Recording
from bus.redis_log import RedisLog
from services.config import MonitorConfig
from services.context import ServiceContext
from services.monitor.report import print_summary
from services.monitor.reporter import Reporting
from services.monitor.view import LiveView
from services.plan import config_of


class Readable(Protocol):
    """A log, or a recording of one."""

    def read(self, after: int, limit: int, block_ms: int = 0) -> Sequence[Entry]:
        """Entries after a position."""


READ_LIMIT = 1000
BLOCK_MS = 500


def main(context: ServiceContext) -> None:
    """Watches the run that the context is of."""
    watch(context.url, context.run, context.folder)


def watch(url: str, run: str, folder: Path) -> None:
    """Shows a run from its first entry on. `folder`: where its recording is, for entries that the server has forgotten.

    Raises LogMissing, GapError, LogChanged, ServerError.
    """
    with RedisLog.open(url, run) as log, closing(Reporting(url, run, folder, monitor_config(read_plan(log, folder)))) as reporting:
        with LiveView() as view:
            for entry in follow(log, folder):
                view.update(entry)
                reporting.take(entry, view.summary)
        print_summary(view.summary.as_dict())


def monitor_config(plan: RunPlanned) -> MonitorConfig:
    """As it was planned; the defaults for a log without a configuration."""
    return config_of(plan).monitor if plan.config else MonitorConfig()


def read_plan(log: Log, folder: Path) -> RunPlanned:
    """The plan of a run, wherever its first entry is. Raises GapError, ConfigError."""
    first = _read(log, folder, 0, 0)[0].event
    if not isinstance(first, RunPlanned):
        raise ConfigError(f"run {log.run}: the log does not begin with a plan, but with {first!r}: it was not made by swingshift")
    return first


def follow(log: Log, folder: Path) -> Iterator[Entry]:
    """Entries from the first one on, as they come, until the run has ended and there are no more. Raises GapError, LogChanged."""
    position, ended = 0, False
    while True:
        entries = _read(log, folder, position, 0 if ended else BLOCK_MS)
        if ended and not entries:
            return
        for entry in entries:
            position = entry.position
            ended = ended or isinstance(entry.event, RunEnded)
            yield entry


def read_all(source: Readable, folder: Path, last: int) -> Iterator[Entry]:
    """Entries up to `last`, from the recording where the server has forgotten them. Raises GapError, LogChanged."""
    position = 0
    while position < last:
        entries = _read(source, folder, position, 0)
        if not entries:
            return
        position = entries[-1].position
        yield from entries


def _read(log: Readable, folder: Path, after: int, block_ms: int) -> Sequence[Entry]:
    try:
        return log.read(after, READ_LIMIT, block_ms)
    except GapError:
        if not (folder / FILE_NAME).is_file():
            raise
        with Recording.open(folder) as recording:
            entries = list(recording.entries(after + 1, after + READ_LIMIT))
        if not entries:
            raise
        return entries
