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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

import bus.die_with_parent
from bus.log import WHATEVER
from services.launcher.endings import how_it_ended
from services.launcher.protocol import RunPlace, ServiceSpec

Command = Callable[[ServiceSpec], Sequence[str]]

_STATE, _GROUP, _SINCE = 0, 2, 19
"""Fields of /proc/PID/stat behind the process's name."""


class LocalLauncher:
    """Starts services here. Use it from a thread that lives as long as they may, the main one say: they end with it."""

    def __init__(
        self,
        place: RunPlace,
        command: Command | None = None,
        *,
        keeps_logs: bool = True,
        environment: Mapping[str, str] = MappingProxyType({}),
        folder: Path | None = None,
    ) -> None:
        """`keeps_logs`: what services say goes into the run's folder; else where this process says it.

        `environment`: what theirs has besides this process's. `folder`: where they work, if not where this process does.
        """
        self._place = place
        self._environment = environment
        self._folder = folder
        self._keeps_logs = keeps_logs
        self._command = command or self._entry

    def spawn(self, spec: ServiceSpec) -> LocalHandle:
        # The URL may contain a password, which a command line would show to everybody on this machine.
        environment = {**os.environ, "REDIS_URL": self._place.url, "PYTHONUNBUFFERED": "1", **self._environment}
        with self._log_of(spec) as log:
            process = subprocess.Popen(
                dying_with_us(self._command(spec)),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self._folder, start_new_session=True,
            )  # fmt: skip
        return LocalHandle(process, self._place, spec.log_name)

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
        token = ["--token", spec.token] if spec.token else []
        device = ["--device", spec.device] if spec.device is not None else []
        folder = ["--folder", str(self._place.folder)]
        return [
            sys.executable, "-P", "-m", "services.entry", spec.service, "--run", self._place.run, *folder, *name, *chosen, *candidate,
            *after, *token, *device,
        ]  # fmt: skip


class LocalHandle:
    """A process and its group."""

    def __init__(self, process: subprocess.Popen[bytes], place: RunPlace, log_name: str) -> None:
        self._process = process
        self._place = place
        self._log_name = log_name

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
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

    def waits_for(self) -> str:
        return ""

    def how_it_ended(self, where: str = "") -> str:
        assert self._process.returncode is not None
        return how_it_ended(self._place, self._log_name, self._process.returncode, where)

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
        fields = _stat(folder) if folder.name.isdecimal() else []
        if fields and int(fields[_GROUP]) == group and fields[_STATE] not in "ZX":
            members.append(int(folder.name))
    return members


def started_at(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None: there is none of this number."""
    fields = _stat(Path("/proc") / str(pid))
    return int(fields[_SINCE]) if fields else None


def _stat(folder: Path) -> list[str]:
    """What the kernel says of a process behind its name, which may contain anything; empty: it has ended meanwhile."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
