"""Shows on a terminal that something is waited for, once two seconds have passed; nothing elsewhere, and nothing stays."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

QUIET_S = 2.0


class Waiting:
    """A line that says for how long, within its `with` block."""

    def __init__(self, what: str, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"))
        self._what = what
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(what, total=None)
        self._shown = False

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            self._progress.stop()

    def tell(self, waited_s: float) -> None:
        """It has been waited for so long."""
        if waited_s > QUIET_S and not self._shown:
            self._progress.start()
            self._shown = True
        self._progress.update(self._task, description=f"{self._what} ({waited_s:.0f} s)")
