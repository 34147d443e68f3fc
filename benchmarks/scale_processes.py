"""The processes of the benchmark of many replicas: each writes to a file of its own, and none is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.level import say

LOOK_S = 0.5
END_S = 30.0
SAID = 2_000
"""Characters of what a process said that are shown when it fails."""


def cpu_s(pid: int) -> float:
    """Processor seconds of a process that runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Processes:
    """All that were started."""

    folder: Path
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, name: str, module: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("w") as log:
            command = [sys.executable, "-m", module, *arguments]
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log, text=True, env=os.environ | (environment or {}))

    def check(self) -> None:
        """Raises SystemExit when one has failed."""
        for name, process in self.running.items():
            if process.poll() not in (None, 0):
                raise SystemExit(f"{name} ended with {process.returncode}: {(self.folder / f'{name}.log').read_text()[-SAID:]}")

    def pause(self, seconds: float, why: str) -> None:
        """Lets them run for a while."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            self.check()
            say(f"{why}: {rest:.0f} s")
            time.sleep(min(LOOK_S, rest))

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each that runs, so far."""
        return {name: cpu_s(process.pid) for name, process in self.running.items() if process.poll() is None}

    def end(self, name: str) -> None:
        process = self.running.pop(name)
        process.terminate()
        process.wait()

    def wait(self) -> list[str]:
        """Until all have ended by themselves, or had their time; those that have not."""
        give_up = time.monotonic() + END_S
        while any(process.poll() is None for process in self.running.values()) and time.monotonic() < give_up:
            time.sleep(LOOK_S)
        return [name for name, process in self.running.items() if process.poll() is None]

    def kill(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
