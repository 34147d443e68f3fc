"""Ctrl-C, SIGTERM, and SIGHUP of a terminal that is gone: the first asks, the second ends at once, further ones are ignored meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType

NOTE = b"\nStopping in order: the batch in training is finished. Ctrl-C again ends everything at once.\n"


class StopNow(BaseException):
    """The user wants everything to end at once. No `except Exception` may hold it up."""


class Interrupts:
    """Hears the user while its block runs. Until `ask` is set, already the first signal raises StopNow. Main thread only."""

    def __init__(self) -> None:
        self.ask: Callable[[], None] | None = None
        """Asks for an orderly end; must do no more than set a flag."""
        self._asked = False
        self._before: dict[int, signal.Handlers] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            before = signal.signal(number, self._hear)
            self._before[number] = before if isinstance(before, signal.Handlers) else signal.SIG_DFL
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in self._before:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else self._before[number])

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self.ask is None or self._asked:
            for later in self._before:
                signal.signal(later, signal.SIG_IGN)
            raise StopNow
        self._asked = True
        with suppress(OSError):  # the terminal may be gone
            os.write(2, NOTE)
        self.ask()
