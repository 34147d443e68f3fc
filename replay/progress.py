"""A progress bar for checks that take longer than two seconds, on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bus.entry import Entry

PATIENCE_S = 2.0
EVERY = 256
"""Entries between two looks at the clock."""


class Watch:
    """Shows how far a check is; a context manager."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("checking {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._began = time.monotonic()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def track(self, entries: Sequence[Entry], what: str) -> Iterator[Entry]:
        """The same entries, while the bar follows."""
        task = self._progress.add_task(what, total=len(entries))
        for number, entry in enumerate(entries):
            if number % EVERY == 0:
                self._look(task, number)
            yield entry
        self._progress.update(task, completed=len(entries))

    def _look(self, task: int, completed: int) -> None:
        if not self._progress.live.is_started and time.monotonic() - self._began > PATIENCE_S:
            self._progress.start()
        self._progress.update(self._progress.task_ids[task], completed=completed)
