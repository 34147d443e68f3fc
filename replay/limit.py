"""A policy from a file has so much processor time for one entry in a replay, and no more: in its run, too, it was killed when it hung.

    within_limit(core, seconds).apply(entry) ─▶ PolicyFailed, which names the file's line, once that time is used up

Only processor time counts, for a policy cannot wait for anything. The limit holds in the main thread of a process that has signals; where
there are none, and inside one call of the interpreter's own (a product of numbers with a billion digits), nothing interrupts it.
Policies of ours are not limited; one that was written for verl is, by the process that it has of its own.
"""

from __future__ import annotations

import linecache
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from bus.core import Core, Deadline, Request
from bus.entry import Entry
from bus.errors import PolicyFailed
from bus.events import Event
from services.policy.core import PolicyCore
from services.policy.source import file_and_class, is_in_file

LIMIT_S = 10.0
"""Processor time for one entry; a sound policy needs a ten-thousandth of it."""
AGAIN_S = 0.05
"""How soon it is interrupted once more, if it goes on after the first time."""
Result = TypeVar("Result")


class OutOfTime(BaseException):
    """No Exception: a policy that handles whatever comes does not handle this by accident."""


def within_limit(core: Core, seconds: float) -> Core:
    """The core itself, or, if it is that of a policy from a file, one that asks it under the limit."""
    if isinstance(core, PolicyCore) and is_in_file(core.policy.name):
        return _Limited(core, seconds)
    return core


def ran_out_of_time(error: PolicyFailed) -> bool:
    """That is why it failed."""
    return isinstance(error.__cause__, OutOfTime)


def made_within_limit(name: str, make: Callable[[], Result], seconds: float) -> Result:
    """What `make` makes of the policy `name`, under the limit if that is from a file. Raises PolicyFailed besides what `make` raises."""
    return _call(name, make, seconds) if is_in_file(name) else make()


def _call(name: str, call: Callable[[], Result], seconds: float) -> Result:
    """Runs code of the file of policy `name`. Raises PolicyFailed when that takes longer, or wants to end the process."""
    try:
        with _interrupted_after(seconds, file_and_class(name)[0]):
            return call()
    except OutOfTime as error:
        raise PolicyFailed(f"policy {name}: {error}") from error
    except SystemExit as error:
        raise PolicyFailed(f"policy {name}: it called sys.exit({error.code})") from error


class _Limited:
    """A `bus.core.Core`."""

    def __init__(self, core: PolicyCore, seconds: float) -> None:
        self._core = core
        self._seconds = seconds
        self.source = core.source

    def apply(self, entry: Entry) -> None:
        _call(self._core.policy.name, lambda: self._core.apply(entry), self._seconds)

    def decide(self) -> Event | None:
        return _call(self._core.policy.name, self._core.decide, self._seconds)

    def outstanding(self) -> Sequence[Request]:
        return self._core.outstanding()

    def deadlines(self) -> Sequence[Deadline]:
        return self._core.deadlines()


@contextmanager
def _interrupted_after(seconds: float, file: str) -> Iterator[None]:
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise OutOfTime(f"it did not come to an end within {seconds:g} s of processor time{_place(frame, file)}")

    former = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def _place(frame: FrameType | None, file: str) -> str:
    """The innermost line of the user's file that runs."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    if frame is None:
        return ""
    return f": {file}, line {frame.f_lineno}, in {frame.f_code.co_name}: {linecache.getline(file, frame.f_lineno).strip()}"
