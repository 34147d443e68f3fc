"""Services as processes of this machine, each the leader of a session and process group of its own.

    supervisor ──(die_with_parent)──▶ service ──▶ what it starts
        └── SIGKILLed: every service gets SIGKILL, too         └── in the service's group: ends with it

An exit counts when nobody of the group is left: a reward worker or an engine's child may hold the device longer than its parent lives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import bus.die_with_parent
from bus.log import WHATEVER
from services.launcher.protocol import Handle, RunPlace, ServiceSpec

Command = Callable[[ServiceSpec], Sequence[str]]


class LocalLauncher:
    """Starts services here. Use it from the main thread: services end with the thread that started them."""

    def __init__(self, place: RunPlace, command: Command | None = None, *, keeps_logs: bool = True) -> None:
        """`keeps_logs`: what services say goes into the run's folder; else where this process says it."""
        self._place = place
        self._keeps_logs = keeps_logs
        self._command = command or self._entry

    def spawn(self, spec: ServiceSpec) -> Handle:
        # The URL may contain a password, which a command line would show to everybody on this machine.
        environment = os.environ | {"REDIS_URL": self._place.url, "PYTHONUNBUFFERED": "1"}
        with self._log_of(spec) as log:
            process = subprocess.Popen(
                dying_with_us(self._command(spec)),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        return LocalHandle(process)

    def _log_of(self, spec: ServiceSpec) -> IO[bytes]:
        if not self._keeps_logs:
            return os.fdopen(os.dup(sys.stderr.fileno()), "ab")
        path = self._place.log_file(spec.log_name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")

    def _entry(self, spec: ServiceSpec) -> Sequence[str]:
        name = ["--name", spec.name] if spec.name else []
        chosen = ["--request", str(spec.request)] if spec.request else []
        candidate = ["--candidate"] if spec.candidate else []
        after = ["--after", str(spec.after)] if spec.after != WHATEVER else []
        folder = ["--folder", str(self._place.folder)]
        return [
            sys.executable, "-P", "-m", "services.entry", spec.service, "--run", self._place.run, *folder, *name, *chosen, *candidate,
            *after,
        ]  # fmt: skip


class LocalHandle:
    """A process and its group."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        if self._process.returncode is not None or not self._has_exited():
            return self._process.returncode
        # Before it is reaped: until then its id is taken, so the signal cannot hit another group.
        os.killpg(self.pid, signal.SIGKILL)
        if living_members(self.pid):
            return None
        return self._process.wait()

    def terminate(self) -> None:
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> bool:
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        return True

    def _has_exited(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def dying_with_us(command: Sequence[str]) -> list[str]:
    """The command, killed by the kernel when this process (its main thread) ends, however that ends."""
    program = bus.die_with_parent.__file__
    return [sys.executable, "-I", "-S", program, str(os.getpid()), str(int(signal.SIGKILL)), *command]


def living_members(group: int) -> list[int]:
    """Processes of a group that have not ended. Reads /proc."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                # pid (name) state parent group …; the name may contain anything.
                state, _, its_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue  # it has ended meanwhile
            if int(its_group) == group and state not in "ZX":
                members.append(int(folder.name))
    return members
