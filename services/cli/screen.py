"""What `swingshift run` shows on a terminal: data that takes long to read, the warm start, then the live view."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from bus.entry import Entry
from bus.events import RunPlanned
from services.launcher.prepare import WarmStartStep
from services.launcher.protocol import RunPlace
from services.planned import config_of

if TYPE_CHECKING:
    from services.monitor.reporter import Reporting
    from services.monitor.view import LiveView


QUIET_S = 2.0
"""What takes less needs no progress."""


class TerminalScreen:
    """A `services.launcher.run.Screen`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console()
        self._clock = clock
        self._reading: float | None = None
        """When reading began."""
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._view: LiveView | None = None
        self._reporting: Reporting | None = None

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

    def reading(self, setting: str, prompts: int) -> None:
        if self._reading is None:
            self._reading = self._clock()
        if self._progress is None and self._clock() - self._reading > QUIET_S:
            self._progress = Progress(
                TextColumn("reading {task.description}"), TextColumn("{task.completed} prompts"), console=self._console
            )
            self._task = self._progress.add_task(setting)
            self._progress.start()
        if self._progress is not None:
            self._progress.update(self._task, description=setting, completed=prompts)

    def begin(self, plan: RunPlanned, place: RunPlace) -> None:
        from services.monitor.reporter import Reporting
        from services.monitor.view import LiveView

        self._end_progress()
        self._console.print(f"run {place.run}, folder {place.folder}")
        self._reporting = Reporting(place.url, place.run, place.folder, config_of(plan).monitor)
        self._view = LiveView(self._console)
        self._view.__enter__()

    def working(self, what: str, done: int, total: int) -> None:
        if self._reading is None:
            self._reading = self._clock()
        if self._progress is None and self._clock() - self._reading > QUIET_S:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._console)
            self._task = self._progress.add_task(what, total=total)
            self._progress.start()
        if self._progress is not None:
            self._progress.update(self._task, description=what, completed=done, total=total)
        if done >= total:
            self._end_progress()
            self._reading = None

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def past(self, entries: Sequence[Entry]) -> None:
        self._take(entries, past=True)

    def take(self, entries: Sequence[Entry]) -> None:
        self._take(entries, past=False)

    def _take(self, entries: Sequence[Entry], *, past: bool) -> None:
        if self._view is not None and self._reporting is not None:
            for entry in entries:
                self._view.update(entry, past=past)
                self._reporting.take(entry, self._view.summary)

    def end(self, *, log_lost: bool = False) -> None:
        self._end_progress()
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = None
        if self._reporting is not None:
            self._reporting.close(last_word=not log_lost)
            self._reporting = None

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
