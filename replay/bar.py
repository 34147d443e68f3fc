"""A progress bar on a terminal, for what takes longer than two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

PATIENCE_S = 2.0
EVERY_S = 0.1
"""How often it is drawn."""

T = TypeVar("T")


class Bar:
    """Shows how far something is; a context manager."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._began = time.monotonic()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def follow(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        """The same items, while the bar counts them."""
        for _, item in self.follow_to(enumerate(items), what, total, lambda numbered: numbered[0]):
            yield item

    def follow_to(self, items: Iterable[T], what: str, total: int, place: Callable[[T], int]) -> Iterator[T]:
        """The same items, while the bar shows at which place of `total` each is."""
        task = self._progress.add_task(what, total=total)
        looked = 0.0
        for item in items:
            now = time.monotonic()
            if now - looked > EVERY_S:
                looked = now
                self._look(task, place(item), now)
            yield item
        self._progress.remove_task(task)

    def _look(self, task: TaskID, completed: int, now: float) -> None:
        if not self._progress.live.is_started and now - self._began > PATIENCE_S:
            self._progress.start()
        self._progress.update(task, completed=completed)
