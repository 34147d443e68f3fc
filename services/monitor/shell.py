"""The monitor's process: shows a run live until it has ended, then its summary. It tells the measures of each step and holds nothing up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from bus.entry import Entry
from bus.events import RunEnded, RunPlanned
from bus.history import History
from services.config import MonitorConfig
from services.context import ServiceContext, plan_of
from services.monitor.report import print_summary
from services.monitor.reporter import Reporting
from services.monitor.view import LiveView
from services.plan import config_of


class Readable(Protocol):
    """A run's history, or a recording of it."""

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
    with (
        History.open(url, run, folder) as history,
        closing(Reporting(url, run, folder, monitor_config(plan_of(history)))) as reporting,
    ):
        with LiveView() as view:
            for entry in follow(history):
                view.update(entry)
                reporting.take(entry, view.summary)
        print_summary(view.summary.as_dict())


def monitor_config(plan: RunPlanned) -> MonitorConfig:
    """As it was planned; the defaults for a log without a configuration."""
    return config_of(plan).monitor if plan.config else MonitorConfig()


def follow(history: Readable) -> Iterator[Entry]:
    """Entries from the first one on, as they come, until the run has ended and there are no more. Raises GapError, LogChanged."""
    position, ended = 0, False
    while True:
        entries = history.read(position, READ_LIMIT, 0 if ended else BLOCK_MS)
        if ended and not entries:
            return
        for entry in entries:
            position = entry.position
            ended = ended or isinstance(entry.event, RunEnded)
            yield entry


def read_all(source: Readable, last: int) -> Iterator[Entry]:
    """Entries up to `last`. Raises GapError, LogChanged."""
    position = 0
    while position < last:
        entries = source.read(position, READ_LIMIT)
        if not entries:
            return
        position = entries[-1].position
        yield from entries
