"""Starts the ranks besides rank 0 on this machine: processes in the group of this one, which end with the thread that started them.

rank 0 ──die_with_parent──▶ python -m services.learner.sharded.follow     each says through a pipe when it is ready to join
   └── the meeting: a file in memory without a name, which they inherit: nobody else finds it, and nothing is left of it
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from bus.errors import LearnerError
from services.devices import share_of
from services.launcher.local import dying_with_us

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_WATCH_S = 0.2
_HANGS = 4
"""Exit code."""


def meeting_at(descriptor: int) -> Path:
    """The file where the ranks find each other, for a process that has it open."""
    return Path(f"/proc/self/fd/{descriptor}")


def say_ready(pipe: int, rank: int) -> None:
    """`rank` has loaded what it needs to join."""
    os.write(pipe, f"{rank}\n".encode())
    os.close(pipe)


class LocalRanks:
    """The ranks 1 … n-1. `backend`: cpu or cuda; `device`: cores or GPUs of all ranks together, empty: any."""

    def __init__(self, ranks: int, backend: str, device: str, timeout_s: float) -> None:
        self._meeting = os.memfd_create("ranks-meeting")
        self._said, self._saying = os.pipe()
        os.set_blocking(self._said, False)
        self._ready = ""
        self._closing = False
        level = str(logging.getLogger().getEffectiveLevel())
        self._settings = {"--ranks": str(ranks), "--backend": backend, "--timeout-s": str(timeout_s), "--log-level": level}
        self._processes = {rank: self._start(rank, share_of(device, rank, ranks)) for rank in range(1, ranks)}

    @property
    def meeting(self) -> Path:
        """Where this process meets the others."""
        return meeting_at(self._meeting)

    @property
    def process_ids(self) -> Mapping[int, int]:
        """Rank -> its process."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def wait_until_ready(self, timeout_s: float) -> None:
        """Raises LearnerError when one ends before, or takes longer."""
        give_up_at = time.monotonic() + timeout_s
        while waiting := self._not_ready():
            if ended := self.ended():
                raise LearnerError(f"{ended} before it had joined; what it said is above")
            if time.monotonic() > give_up_at:
                raise LearnerError(f"the ranks {', '.join(map(str, waiting))} were not ready to join after {timeout_s:g} s")
            time.sleep(_POLL_S)

    def ended(self, within_s: float = 0.0) -> str:
        """Which rank has ended, and how; empty: none has, and none does in time."""
        give_up_at = time.monotonic() + within_s
        while True:
            for rank, process in self._processes.items():
                if (code := process.poll()) is not None:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    return f"rank {rank} (process {process.pid}) has ended with {how}"
            if time.monotonic() >= give_up_at:
                return ""
            time.sleep(_POLL_S)

    def watch(self, is_busy: Callable[[], bool], notice_s: float = 10.0) -> None:
        """From now on this process ends `notice_s` after a rank has, if a command that needs it goes on: a collective may wait for ever."""
        threading.Thread(target=self._watch, args=(is_busy, notice_s), name="ranks", daemon=True).start()

    def close(self) -> None:
        """Ends the processes, which keep nothing that must be brought to an end. Twice is once."""
        if self._closing:
            return
        self._closing = True
        for process in self._processes.values():
            process.kill()
            process.wait()
        # The meeting stays open as long as this process lives: torch may write there until then, and the number would be another file's.
        os.close(self._said)
        os.close(self._saying)

    def _not_ready(self) -> list[int]:
        with suppress(BlockingIOError):
            self._ready += os.read(self._said, 4096).decode()
        return [rank for rank in self._processes if str(rank) not in self._ready.split()]

    def _watch(self, is_busy: Callable[[], bool], notice_s: float) -> None:
        while not self._closing and not self.ended():
            time.sleep(_WATCH_S)
        give_up_at = time.monotonic() + notice_s
        while not self._closing and is_busy():
            if time.monotonic() > give_up_at:
                logger.critical("%s, and what needs it does not return: this process ends", self.ended())
                os._exit(_HANGS)
            time.sleep(_WATCH_S)

    def _start(self, rank: int, device: str) -> subprocess.Popen[bytes]:
        met = {"--meeting": str(self._meeting), "--ready": str(self._saying)}
        settings = self._settings | met | {"--rank": str(rank), "--device": device}
        words = [word for setting in settings.items() for word in setting]
        command = dying_with_us([sys.executable, "-P", "-m", "services.learner.sharded.follow", *words])
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[self._meeting, self._saying])
