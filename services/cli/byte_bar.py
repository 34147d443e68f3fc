"""How far a file of some size is, for what may take long: nothing is shown before two seconds have passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

QUIET_S = 2.0


class ByteBar:
    """Shows bytes done of a total within its `with` block."""

    def __init__(self, what: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task(what, total=None)
        self._shown = False

    def __enter__(self) -> ByteBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            self._progress.stop()

    def show(self, done: int, total: int) -> None:
        """So many bytes are done."""
        if not self._shown and self._clock() - self._began > QUIET_S:
            self._progress.start()
            self._shown = True
        self._progress.update(self._task, completed=done, total=total)
