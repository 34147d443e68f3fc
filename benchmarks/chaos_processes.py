"""The processes of a run under fire, as this machine's kernel has them: who is to be killed need not say where it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path


def service_pids(run: str) -> dict[str, int]:
    """Source -> process of every service of a run on this machine."""
    found: dict[str, int] = {}
    for pid, line in commands():
        if is_service(run, line):
            service = line[line.index("services.entry") + 1]
            found[f"replica:{line[line.index('--name') + 1]}" if "--name" in line else service] = pid
    return found


def is_service(run: str, line: Sequence[str]) -> bool:
    """A command line is that of a service of the run, and not of what becomes one in a moment."""
    ours = "services.entry" in line and "--run" in line and line[line.index("--run") + 1] == run
    return ours and not line[3].endswith("die_with_parent.py")


def commands() -> list[tuple[int, list[str]]]:
    """Every process of this machine that lives, with its command line."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
    return [(pid, line) for pid in pids if (line := command_of(pid))[0]]


def command_of(pid: int) -> list[str]:
    """The command line of a process, one empty word when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def working_folder(pid: int) -> str:
    """Where a process works, nothing when it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def kill_process(pid: int) -> bool:
    """SIGKILL. False: it is gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
