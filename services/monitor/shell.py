"""The monitor's process: shows a run live until it has ended, then its summary. It appends nothing and holds nothing up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bus.entry import Entry
from bus.errors import GapError
from bus.events import RunEnded
from bus.log import Log
from bus.recording import FILE_NAME, Recording
from bus.redis_log import RedisLog
from services.context import ServiceContext
from services.monitor.report import print_summary
from services.monitor.view import LiveView

READ_LIMIT = 1000
BLOCK_MS = 500


def main(context: ServiceContext) -> None:
    """Watches the run that the context is of."""
    watch(context.url, context.run, context.folder)


def watch(url: str, run: str, folder: Path) -> None:
    """Shows a run from its first entry on. `folder`: where its recording is, for entries that the server has forgotten.

    Raises LogMissing, GapError, LogChanged, ServerError.
    """
    with RedisLog.open(url, run) as log:
        with LiveView() as view:
            for entry in follow(log, folder):
                view.update(entry)
        print_summary(view.summary.as_dict())


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


def _read(log: Log, folder: Path, after: int, block_ms: int) -> list[Entry]:
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
