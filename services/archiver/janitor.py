"""The janitor of a run's log, in the archiver's process, for nobody knows better how far the log is on the disk.

entries, as they are recorded ─▶ payload_lives ─▶ payloads that are dead: deleted
                              └▶ brake ◀─ measured use of memory, once in a while          brake ─▶ RolloutPaused, RolloutResumed
positions of the essential consumers, and of the recording ─▶ the lowest: trimmed up to there, but for the newest entries

Observers hold nothing: they read the recording (bus/history.py). Nothing that is not on the disk is ever deleted or trimmed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bus.entry import Draft, Entry, Producer
from bus.errors import DiskError
from bus.events import RolloutPaused
from bus.host import check_emitter
from bus.log import Log
from bus.memory_use import Use
from bus.recording import Recording, Row
from services.archiver import attendance, brake, payload_lives
from services.archiver.brake import Brake, Marks
from services.archiver.payload_lives import PayloadLives
from services.config import RedisConfig
from services.controller.expected import Expected

logger = logging.getLogger(__name__)

JANITOR = Producer("janitor", 0)
"""Without an epoch: it is the archiver's, which notices by itself that it was replaced. Saying something twice does no harm."""
EVERY_S = 1.0
STILL_S = 5.0
"""How long nothing may move in a pause before samples are started again."""
KEPT_ENTRIES = 20_000
"""Newest recorded entries that stay on the server: a replica whose process stands still for a while has its inbox when it goes on."""
FEWEST_KEPT = 1_000
"""When memory is short, enough for who looks at the end of the log."""
AT_LEAST = 200
"""Entries trimmed in one call, at least."""
AT_ONCE = 10_000
"""Dead payloads that are gathered before they are deleted."""

ESSENTIAL = ("trainer", "rollouter", "controller")
"""Consumers that hold the log from its first entry on, also before they have started."""
POLICY = "policy"
"""Holds the log while it is there: the run goes on without it, and its successor reads the recording."""

_EACH_SAMPLE = ("GenerationFinished", "GenerationRequested", "SampleDropped", "SampleReady", "SampleStarted")
KINDS = frozenset((*brake.KINDS, *attendance.KINDS, *payload_lives.KINDS))
"""All that a janitor looks at."""
RARE = tuple(sorted(KINDS.difference(_EACH_SAMPLE)))
"""What a successor looks at of the time before its predecessor's floor."""


class Trims(Protocol):
    """What can be forgotten; see `bus.trimming.Trimming`."""

    def positions(self) -> dict[str, int]:
        """Consumer -> how far it has durably got."""

    def report(self, consumer: str, position: int) -> None:
        """Says how far a consumer has durably got."""

    def trim(self, up_to: int) -> int:
        """Forgets entries up to a position; returns how many."""


class Deletes(Protocol):
    """The half of `bus.log.Blobs` that a janitor needs."""

    def delete(self, names: Sequence[str]) -> None:
        """Removes payloads; unknown names are ignored."""


class Janitor:
    """Watches over one run. `measure` tells what it takes on the server."""

    def __init__(
        self,
        log: Log,
        trims: Trims,
        payloads: Deletes,
        measure: Callable[[], Use],
        settings: RedisConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._trims = trims
        self._payloads = payloads
        self._measure = measure
        self._clock = clock
        self._most = settings.memory_budget
        self._brake = Brake(Marks(settings.memory_resume_at, settings.memory_pause_at), STILL_S)
        self._expected = Expected()
        self._lives = PayloadLives()
        self._dead: list[str] = []
        self._position = 0
        """Up to here everything is on the disk."""
        self._trimmed = 0
        self._kept = KEPT_ENTRIES
        self._look_at = clock() + EVERY_S
        self._hindrance = ""
        """Why nothing is recorded for the moment."""

    def hindered(self, error: DiskError) -> None:
        """The disk takes nothing: nothing can be forgotten, and the budget holds all the same."""
        self._hindrance = str(error)
        self.take(())

    def recover(self, recording: Recording) -> None:
        """Takes in what is recorded already; of the time before its predecessor's floor only what is rare."""
        floor = self._trims.positions().get(JANITOR.source, 0)
        now, last = self._clock(), recording.last_position()
        for row in recording.rows(last=min(floor, last), kinds=RARE):
            self._fold(row.entry(), now)
        for row in recording.rows(floor + 1, last, kinds=tuple(KINDS)):
            self._fold(row.entry(), now)
        self._bury()
        self._position = last

    def take(self, rows: Sequence[Row]) -> None:
        """Takes in what is on the disk now, then looks whether it is time to trim and to measure."""
        now = self._clock()
        self._hindrance = "" if rows else self._hindrance
        for row in rows:
            if row.kind in KINDS:
                self._fold(row.entry(), now)
            self._position = row.position
        self._bury()
        if now >= self._look_at:
            self._look_at = now + EVERY_S
            self._trim()
            self._look(now)

    def _fold(self, entry: Entry, now: float) -> None:
        self._brake.apply(entry, now)
        self._expected.apply(entry)
        self._dead += self._lives.apply(entry)
        if len(self._dead) >= AT_ONCE:
            self._bury()

    def _bury(self) -> None:
        if self._dead:
            self._payloads.delete(self._dead)
            self._dead = []

    def _trim(self) -> bool:
        """Whether anything was forgotten. What is dead is deleted by now, so a successor may begin at the floor."""
        if not self._position:
            return False
        positions = self._trims.positions()
        floor = self._lives.floor
        self._trims.report(JANITOR.source, self._position if floor is None else floor)
        holders = [*ESSENTIAL, POLICY] if POLICY in self._expected.epochs else list(ESSENTIAL)
        up_to = min(self._position - self._kept, *(positions.get(holder, 0) for holder in holders))
        if up_to < self._trimmed + AT_LEAST:
            return False
        self._trims.trim(up_to)
        self._trimmed = up_to
        return True

    def _use(self) -> tuple[int, int]:
        """What the run takes on the server, and what it may take."""
        use = self._measure()
        return use.run, use.budget(self._brake.beside.memory_budget or self._most)

    def _look(self, now: float) -> None:
        used, budget = self._use()
        kept = KEPT_ENTRIES if used < self._brake.short_at * budget else FEWEST_KEPT
        fewer, self._kept = kept < self._kept, kept
        if fewer and self._trim():
            # No run is paused or ended for what can be forgotten.
            used, budget = self._use()
        event = self._brake.decide(used, budget, now, up_to_date=self._log.last_position() <= self._position)
        if event is None:
            return
        if self._hindrance and isinstance(event, RolloutPaused):
            event = event.model_copy(update={"detail": self._hindrance})
        logger.warning("memory: event=%s used=%d budget=%d", event.kind, event.used_bytes, event.budget_bytes)
        check_emitter(JANITOR.source, event)
        position = self._log.append(JANITOR, [Draft(event, derived=False, cause=self._position, at=time.time_ns())])
        # At once, and not when it is read: the next look must know of it.
        self._brake.apply(Entry(position, JANITOR.source, 0, False, self._position, 0, "", event), now)
