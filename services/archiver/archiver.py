"""Copies a log into a recording until the run is over.

log ─▶ what came in a fifth of a second ─▶ recorder.append (on the disk) ─▶ report(position): the janitor may trim up to it
                                                                         └▶ watch(entries), also without any: the janitor's turn
RunEnded ─▶ go on until everybody else has stopped, or for `grace_s`
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from bus.entry import Entry, Producer
from bus.errors import Fenced
from bus.log import Log
from bus.recorder import Recorder
from services.archiver.attendance import Attendance

logger = logging.getLogger(__name__)

READ_LIMIT = 1000
BLOCK_MS = 500
GATHER_S = 0.2
"""Pause after a commit, so that a busy log costs five of them a second and not one for each entry."""

Watch = Callable[[Sequence[Entry]], None]
"""Is given what was recorded, several times a second, also when that is nothing."""
Report = Callable[[int], None]
"""Is told the position up to which everything is on the disk."""


def nobody(entries: Sequence[Entry]) -> None:
    """Watches nothing."""


class Archiver:
    """One incarnation of the archiver. `attendance` has seen what is recorded already."""

    def __init__(
        self, log: Log, recorder: Recorder, me: Producer, report: Report, attendance: Attendance, grace_s: float, watch: Watch = nobody
    ) -> None:
        self._log = log
        self._recorder = recorder
        self._me = me
        self._report = report
        self._attendance = attendance
        self._grace_s = grace_s
        self._watch = watch

    def run(self) -> None:
        """Records until the run has ended and everybody else has stopped, or the grace is over. Raises Fenced, GapError, LogError."""
        while not self._attendance.ended:
            if self._step() < READ_LIMIT:
                time.sleep(GATHER_S)
        deadline = time.monotonic() + self._grace_s
        while self._others() and time.monotonic() < deadline:
            self._step()
        if self._others():
            logger.warning("recording ends without everybody's last word: missing=%s grace_s=%g", ",".join(self._others()), self._grace_s)

    def run_to(self, position: int) -> None:
        """Records everything up to `position`, which is in the log."""
        while self._recorder.last_position < position:
            self._step()

    def _others(self) -> list[str]:
        return [source for source in self._attendance.here if source != self._me.source]

    def _step(self) -> int:
        """Records what is there, waiting for it a little; returns how many entries."""
        entries = self._log.read(self._recorder.last_position, READ_LIMIT, BLOCK_MS)
        if entries:
            self._check_fence(entries)
            self._recorder.append(entries)
            self._report(self._recorder.last_position)
        for entry in entries:
            self._attendance.apply(entry)
        self._watch(entries)
        return len(entries)

    def _check_fence(self, entries: Sequence[Entry]) -> None:
        """An archiver appends next to nothing, so it must see by itself that it was replaced."""
        for entry in entries:
            if entry.source == self._me.source and entry.epoch > self._me.epoch:
                raise Fenced(f"{entry.source} epoch {self._me.epoch} was replaced by epoch {entry.epoch}: this process must end")
