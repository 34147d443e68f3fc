"""What `swingshift run` shows on a terminal: the warm start, then the live view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from bus.entry import Entry
from bus.events import RunPlanned
from services.launcher.prepare import WarmStartStep
from services.launcher.protocol import RunPlace

if TYPE_CHECKING:
    from services.monitor.view import LiveView


class TerminalScreen:
    """A `services.launcher.run.Screen`."""

    def __init__(self) -> None:
        self._console = Console()
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._view: LiveView | None = None

    def warm_start(self, step: WarmStartStep) -> None:
        if self._progress is None:
            columns = (
                TextColumn("warm start"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[loss]}"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=self._console)
            self._task = self._progress.add_task("warm start", total=step.steps, loss="")
            self._progress.start()
        self._progress.update(self._task, completed=step.step, total=step.steps, loss="" if step.loss is None else f"loss {step.loss:.3f}")

    def begin(self, plan: RunPlanned, place: RunPlace) -> None:
        from services.monitor.view import LiveView

        self._end_progress()
        self._console.print(f"run {place.run}, folder {place.folder}")
        self._view = LiveView(self._console)
        self._view.__enter__()

    def take(self, entries: Sequence[Entry]) -> None:
        if self._view is not None:
            for entry in entries:
                self._view.update(entry)

    def end(self) -> None:
        self._end_progress()
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = None

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
