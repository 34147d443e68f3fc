"""Copies a log into a recording until the run is over.

log ─▶ what came in a fifth of a second ─▶ recorder.append (on the disk) ─▶ report(position): the janitor may trim up to it
                                             │ DiskError                 └▶ watch(entries), also without any: the janitor's turn
                                             └▶ again and again, until there is room
RunEnded ─▶ go on until everybody else has stopped, or for `grace_s`
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bus.entry import Producer
from bus.errors import DiskError, Fenced
from bus.recording import Row
from bus.run_recorder import Rows
from services.archiver.attendance import KINDS, Attendance
from services.archiver.disk_patience import DiskPatience

logger = logging.getLogger(__name__)

READ_LIMIT = 250
"""Entries asked for in one call: 0.4 ms of the server, which answers nobody else meanwhile."""
MOST_ROWS = 2_000
"""In one commit."""
BLOCK_MS = 500
GATHER_S = 0.2
"""Pause after a commit, so that a busy log costs five of them a second and not one for each entry."""

Watch = Callable[[Sequence[Row]], None]
"""Is given what was recorded, several times a second, also when that is nothing."""
Report = Callable[[int], None]
"""Is told the position up to which everything is on the disk."""
Hindered = Callable[[DiskError], None]
"""Is told, several times a second, why the disk takes nothing."""


class Records(Protocol):
    """What is written; see `bus.run_recorder.RunRecorder`."""

    @property
    def last_position(self) -> int:
        """Position of the newest entry that is durably recorded."""

    def append(self, rows: Sequence[Row]) -> None:
        """Records entries durably. Raises DiskError when the disk takes nothing for the moment."""


def nobody(rows: Sequence[Row]) -> None:
    """Watches nothing."""


def unhindered(error: DiskError) -> None:
    """Nobody needs to know."""


def unreported(position: int) -> None:
    """For an observer, whose position holds nothing."""


class Archiver:
    """One incarnation of the archiver. `attendance` has seen what is recorded already; `me`: None for an observer, whom nobody replaces."""

    def __init__(
        self, log: Rows, recorder: Records, me: Producer | None, attendance: Attendance, grace_s: float,
        report: Report = unreported, watch: Watch = nobody, hindered: Hindered = unhindered,
    ) -> None:  # fmt: skip
        self._log = log
        self._recorder = recorder
        self._me = me
        self._report = report
        self._attendance = attendance
        self._grace_s = grace_s
        self._watch = watch
        self._hindered = hindered
        self._ahead = 0
        """Up to here the log was looked at while the disk took nothing."""

    def run(self) -> None:
        """Records until the run has ended and everybody else has stopped, or the grace is over. Raises Fenced, GapError, LogError."""
        while not self._attendance.ended:
            if self._step() < MOST_ROWS:
                time.sleep(GATHER_S)
        deadline = time.monotonic() + self._grace_s
        while self._others() and time.monotonic() < deadline:
            self._step()
        if self._others():
            logger.warning("recording ends without everybody's last word: missing=%s grace_s=%g", ",".join(self._others()), self._grace_s)

    def run_to(self, position: int) -> None:
        """Records everything up to `position`, which is in the log. Raises DiskError, too: this is for an end that does not wait."""
        while self._recorder.last_position < position:
            rows = self._read()
            self._recorder.append(rows)
            self._take(rows)

    def _others(self) -> list[str]:
        return [source for source in self._attendance.here if self._me is None or source != self._me.source]

    def _step(self) -> int:
        """Records what is there, waiting for it a little; returns how many entries."""
        rows = self._read()
        DiskPatience(self._meanwhile).until_taken(lambda: self._recorder.append(rows))
        self._take(rows)
        return len(rows)

    def _read(self) -> Sequence[Row]:
        rows = list(self._log.read_rows(self._recorder.last_position, READ_LIMIT, BLOCK_MS))
        num_read = len(rows)
        while num_read == READ_LIMIT and len(rows) < MOST_ROWS:
            more = self._log.read_rows(rows[-1].position, READ_LIMIT)
            num_read = len(more)
            rows += more
        self._check_fence(rows)
        return rows

    def _take(self, rows: Sequence[Row]) -> None:
        """They are on the disk."""
        if rows:
            self._report(self._recorder.last_position)
        for row in rows:
            if row.kind in KINDS:
                self._attendance.apply(row.entry())
        self._watch(rows)

    def _meanwhile(self, error: DiskError) -> None:
        """The disk takes nothing: the janitor still has its turn, and a successor is still noticed."""
        self._hindered(error)
        rows = self._log.read_rows(max(self._ahead, self._recorder.last_position), READ_LIMIT)
        self._check_fence(rows)
        self._ahead = rows[-1].position if rows else self._ahead

    def _check_fence(self, rows: Sequence[Row]) -> None:
        """An archiver appends next to nothing, so it must see by itself that it was replaced."""
        for row in rows:
            if self._me is not None and row.source == self._me.source and row.epoch > self._me.epoch:
                raise Fenced(f"{row.source} epoch {self._me.epoch} was replaced by epoch {row.epoch}: this process must end")
