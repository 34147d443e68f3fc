"""Starts the ranks besides rank 0 on this machine: processes in the group of this one, which end with the thread that started them.

rank 0 ──die_with_parent──▶ python -m services.learner.sharded.follow     each says in the meeting's folder when it is ready to join
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bus.errors import LearnerError
from services.devices import share_of
from services.launcher.local import dying_with_us

logger = logging.getLogger(__name__)

MEETING = "meeting"
_POLL_S = 0.05
_WATCH_S = 0.2
_HANGS = 4
"""Exit code."""


def ready_file(meeting: Path, rank: int) -> Path:
    """Is there when `rank` has loaded what it needs to join."""
    return meeting.with_name(f"ready-{rank}")


class LocalRanks:
    """The ranks 1 … n-1. `backend`: cpu or cuda; `device`: cores or GPUs of all ranks together, empty: any."""

    def __init__(self, ranks: int, backend: str, device: str, timeout_s: float) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="swingshift-ranks-"))
        self.meeting = self._folder / MEETING
        self._closing = False
        level = str(logging.getLogger().getEffectiveLevel())
        self._settings = {"--ranks": str(ranks), "--backend": backend, "--timeout-s": str(timeout_s), "--log-level": level}
        self._processes = {rank: self._start(rank, share_of(device, rank, ranks)) for rank in range(1, ranks)}

    @property
    def process_ids(self) -> Mapping[int, int]:
        """Rank -> its process."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def wait_until_ready(self, timeout_s: float) -> None:
        """Raises LearnerError when one ends before, or takes longer."""
        give_up_at = time.monotonic() + timeout_s
        waiting = dict.fromkeys(self._processes)
        while waiting:
            waiting = {rank: None for rank in waiting if not ready_file(self.meeting, rank).exists()}
            if waiting and (ended := self.ended()):
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
        self._closing = True
        for process in self._processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

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
        settings = self._settings | {"--meeting": str(self.meeting), "--rank": str(rank), "--device": device}
        words = [word for setting in settings.items() for word in setting]
        command = dying_with_us([sys.executable, "-P", "-m", "services.learner.sharded.follow", *words])
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)
