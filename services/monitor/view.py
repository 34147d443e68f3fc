"""A run, live: on a terminal a view that is drawn anew four times a second, elsewhere a plain line every few seconds.

update(entry) ─▶ folds        the drawing thread ─▶ Board ─▶ terminal
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from bus.entry import Entry
from bus.events import BoundaryOpened, RunPlanned, StepDone, SwitchDone, SwitchRejected, SwitchStarted
from policies.swings import Swings
from services.monitor.board import Board
from services.monitor.elapsed import Elapsed, Moment, clock_text
from services.monitor.notes import agreement_note, note_of, swing_note
from services.monitor.summary import Summary

FRAMES_PER_S = 4
PLAIN_EVERY_S = 5.0
KEPT_NOTES = 64


class LiveView:
    """Shows a run while its `with` block runs. `update` may be called from one thread, any one."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic, plain_every_s: float = PLAIN_EVERY_S
    ) -> None:
        self.summary = Summary()
        self._console = console or Console()
        self._clock = clock
        self._plain_every_s = plain_every_s
        self._elapsed = Elapsed(clock)
        self._swings = Swings()
        self._notes: deque[tuple[float | None, str]] = deque(maxlen=KEPT_NOTES)
        self._planned: Moment | None = None
        self._opened: Moment | None = None
        self._held: Moment | None = None
        self._ended_s: float | None = None
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._next_line_s = float("-inf")

    def __enter__(self) -> LiveView:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._draw, refresh_per_second=FRAMES_PER_S, vertical_overflow="crop", transient=False
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self.summary.entries:
            self._print(self._board().line())

    def update(self, entry: Entry, *, past: bool = False) -> None:
        """Takes in the next entry of the log. `past`: of what a run had that goes on, which is no news."""
        with self._lock:
            note = self._apply(entry)
        if self._live is None and not past:
            self._say(entry, note)

    def _apply(self, entry: Entry) -> str | None:
        moment = self._elapsed.apply(entry)
        self.summary.apply(entry)
        self._swings.apply(entry)
        match entry.event:
            case RunPlanned():
                self._planned = moment
            case BoundaryOpened() if self._opened is None:
                self._opened = self._held = moment
            case SwitchStarted() | SwitchDone() | SwitchRejected():
                self._held = moment
            case _:
                pass
        if self.summary.ended is not None and self._ended_s is None:
            self._ended_s = self._running_s() or 0.0
        note = note_of(entry, self.summary.opened) or agreement_note(entry, self.summary)
        line = note or swing_note(entry, self.summary)
        if line is not None:
            self._notes.append((self._running_s(), line))
        return note

    def _running_s(self) -> float | None:
        if self._ended_s is not None:
            return self._ended_s
        return None if self._opened is None else self._elapsed.since_s(self._opened)

    def _board(self) -> Board:
        held, planned = (None if moment is None else self._elapsed.since_s(moment) for moment in (self._held, self._planned))
        return Board(self.summary, self._swings.lend, self._notes, self._running_s(), held, planned)

    def _draw(self) -> RenderableType:
        width, height = self._console.size
        with self._lock:
            return self._board().draw(width, height)

    def _say(self, entry: Entry, note: str | None) -> None:
        """Without a terminal: what is notable at once, how far the run is every few seconds and at a step."""
        if note is not None:
            seconds = self._running_s()
            self._print(f"{'starting' if seconds is None else clock_text(seconds)}  {note}")
        if isinstance(entry.event, StepDone) and self._clock() >= self._next_line_s:
            self._next_line_s = self._clock() + self._plain_every_s
            self._print(self._board().line())

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)
