"""The processes of one vLLM: found by who started them, ended by force, and what they would leave behind removed.

    replica ──▶ engine core ──▶ workers

Nothing in them must be saved, and an orderly end takes seconds, in which two large interpreters are taken apart: so they are killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import NamedTuple

from bus import die_with_parent
from services.machine import SHARED_MEMORY

PROC = Path("/proc")
KINDS = {"psm_": "shared_memory", "sem.mp-": "semaphore"}
"""How Python's shared memory is called there -> what its resource tracker calls it."""
POLL_S = 0.01


class Spawned(NamedTuple):
    """One process; a number that the kernel uses again has started at another time."""

    pid: int
    started: str


@contextlib.contextmanager
def dying_with_this_one(folder: Path) -> Iterator[None]:
    """Whatever `multiprocessing` spawns meanwhile ends with this process from its first moment on. `folder`: for a script.

    vLLM's core waits minutes for a parent that is gone, before it calls any code of ours.
    """
    # The tracker removes what is shared when all others have ended: it must not end with us.
    resource_tracker.ensure_running()
    python, script, before = shlex.quote(sys.executable), folder / "spawn", spawn.get_executable()
    dying = f'-I -S {shlex.quote(die_with_parent.__file__)} "$PPID" {int(signal.SIGKILL)}'
    script.write_text(f'#!/bin/sh\nexec {python} {dying} {python} "$@"\n')
    script.chmod(0o700)
    # Where temporary files may not be run, the core comes to our code a little later.
    if os.access(script, os.X_OK):
        spawn.set_executable(str(script))
    try:
        yield
    finally:
        spawn.set_executable(before)


def descendants(pids: Iterable[int]) -> list[Spawned]:
    """These processes and all that they have started, as far as they are alive."""
    parents = {int(path.name): found for path in PROC.iterdir() if path.name.isdecimal() and (found := _look(int(path.name)))}
    wanted = list(pids)
    for pid in wanted:
        wanted += [child for child, (parent, _) in parents.items() if parent == pid]
    return [Spawned(pid, parents[pid][1]) for pid in wanted if pid in parents]


def alive(process: Spawned) -> bool:
    """Whether it still runs, so that it could hold memory or a device."""
    found = _look(process.pid)
    return found is not None and found[1] == process.started


def end(processes: Sequence[Spawned], within_s: float) -> list[Spawned]:
    """Kills them; returns who is still there after so long."""
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + within_s
    while (left := [process for process in processes if alive(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def shared_memory(processes: Iterable[Spawned]) -> set[Path]:
    """Segments and semaphores of Python's that they have mapped."""
    mapped = {line.split(maxsplit=5)[-1] for process in processes for line in _maps(process.pid)}
    return {Path(name) for name in mapped if Path(name).parent == SHARED_MEMORY and Path(name).name.startswith(tuple(KINDS))}


def remove(segments: Iterable[Path]) -> None:
    """As their creators would have done: the tracker, which is ours too, would otherwise complain of them at the end."""
    for path in segments:
        with contextlib.suppress(OSError):
            path.unlink()
            kind = next(kind for prefix, kind in KINDS.items() if path.name.startswith(prefix))
            resource_tracker.unregister("/" + path.name.removeprefix("sem."), kind)


def _look(pid: int) -> tuple[int, str] | None:
    """(parent, when it started); None if it is gone, or dead and only not yet waited for."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), fields[19])


def _maps(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "maps").read_text().splitlines()
    except OSError:
        return []
