"""A seal around code that must be a function of the log: whatever it calls that is not raises, under whatever name it was imported.

Patching `time.time` would miss a core that says `from time import time`. The interpreter tells a profiler of every call before it is made,
of Python and of C, so the seal is one: it looks who is called, and raises in the caller's place.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FrameType

CLOSED = frozenset({
    "_asyncio", "_datetime", "_io", "_posixsubprocess", "_random", "_secrets", "_socket", "_sqlite3", "_ssl", "_thread", "_uuid",
    "asyncio", "concurrent", "datetime", "gc", "io", "locale", "logging", "mmap", "multiprocessing", "os", "pathlib", "platform", "posix",
    "random", "secrets", "select", "selectors", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time",
    "urllib", "uuid", "zoneinfo",
})  # fmt: skip
"""Modules and packages that tell what is not in the log: clocks, random numbers, files, sockets, the process and its environment."""
CLOSED_BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})


class SealBroken(AssertionError):
    """Deterministic code called what may answer differently next time."""


@contextmanager
def sealed() -> Iterator[None]:
    """Within it, in this thread, such a call raises SealBroken."""
    before = sys.getprofile()
    # What others do when garbage is collected (hypothesis looks at the clock) is not the sealed code's doing.
    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(_watch)
    try:
        yield
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


def _watch(frame: FrameType, event: str, called: object) -> None:
    if event == "c_call" and isinstance(called, BuiltinFunctionType):
        module = _module_of(called)
        if _is_closed(module) or (module == "builtins" and called.__name__ in CLOSED_BUILTINS):
            _break(f"{module}.{called.__qualname__}", frame)
    elif event == "call":
        module = frame.f_globals.get("__name__", "")
        if _is_closed(module):
            _break(f"{module}.{frame.f_code.co_qualname}", frame.f_back)


def _is_closed(module: str) -> bool:
    return module.partition(".")[0] in CLOSED


def _module_of(called: BuiltinFunctionType) -> str:
    """Where a function in C lies; a method has no module, but what it belongs to has a type, or is one."""
    if called.__module__ is not None:
        return called.__module__
    owner = called.__self__
    return (owner if isinstance(owner, type) else type(owner)).__module__


def _break(what: str, caller: FrameType | None) -> None:
    sys.setprofile(None)
    where = "" if caller is None else f" by {caller.f_code.co_filename}:{caller.f_lineno} ({caller.f_code.co_qualname})"
    raise SealBroken(f"{what} was called{where}: a core decides from the log alone")
