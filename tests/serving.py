"""Services of a run as plain processes that are started one by one, each with its own folder and its own way to the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType

COMMAND = [sys.executable, "-P", "-m", "swingshift"]
PATIENCE_S = 120.0
"""A wait for processes that fails the test when it takes this long; never reached by healthy ones."""
SERVICES = (
    ("archiver", ""), ("trainer", ""), ("rollouter", ""), ("controller", ""), ("policy", ""), ("replica", "s0"), ("replica", "h0"),
)  # fmt: skip
QUIET = {name: value for name, value in os.environ.items() if not name.startswith("REDIS_")} | {
    "COLUMNS": "200",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
}
SCRIPTED = """
model: {path: scripted}
rollout: {engine: scripted, n: 2}
scripted: {tokens_per_second: 2000}
async_training: {total_steps: 4, ppo_mini_batch_size: 4, trigger_parameter_sync_step: 2}
devices: unpinned
"""
"""A run without a model: everything else is real."""


def swingshift(*arguments: str, status: int = 0, stdin: str = "", environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Runs a command to its end; returns all that it printed, on one line."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=QUIET | dict(environment), input=stdin
    )
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return " ".join((done.stdout + done.stderr).split())


def write_config(folder: Path, name: str = "scripted", **settings: str) -> Path:
    """A configuration of a scripted run whose folder lies in folder/runs."""
    path = folder / f"{name}.yaml"
    path.write_text(SCRIPTED + f"folder: {folder / 'runs'}\n" + "".join(f"{key}: {value}\n" for key, value in settings.items()))
    return path


def children(pid: int) -> list[int]:
    """Processes that a process started and that are not reaped."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            found += [int(folder.name)] if parent == pid else []
    return found


def is_alive(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has reaped yet has."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """A supervisor with its server and all its services, at once."""
    for pid in [process.pid, *children(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


class Served:
    """Processes that end with the block. What each says is in a file of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def start(self, key: str, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> None:
        """Starts a command of this project; `key` names it here."""
        with (self._folder / f"{key}.txt").open("wb") as output:
            self._processes[key] = subprocess.Popen(
                [*COMMAND, *command], env=QUIET | dict(environment), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def said(self, key: str) -> str:
        """What a process has printed so far."""
        return (self._folder / f"{key}.txt").read_text()

    def wait_until_said(self, key: str, words: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while words not in self.said(key):
            assert self._processes[key].poll() is None, self.said(key)
            assert time.monotonic() < give_up, f"{key} did not say {words!r}: {self.said(key)}"
            time.sleep(0.05)

    def end(self, key: str) -> int:
        """Exit status of a process that ends by itself."""
        return self._processes[key].wait(PATIENCE_S)

    def wait(self) -> None:
        """Until all have ended, in order."""
        for key in self._processes:
            assert self.end(key) == 0, f"{key}: {self.said(key)[-3000:]}"
