"""The janitor of a run's log, in the archiver's process, for nobody knows better how far the log is on the disk.

entries, as they are recorded ─▶ brake ◀─ measured use of memory, once in a while          brake ─▶ RolloutPaused, RolloutResumed
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from bus.entry import Draft, Entry, Producer
from bus.host import check_emitter
from bus.log import Log
from bus.memory_use import Use
from services.archiver.brake import Brake, Marks
from services.config import RedisConfig

logger = logging.getLogger(__name__)

JANITOR = Producer("janitor", 0)
"""Without an epoch: it is the archiver's, which notices by itself that it was replaced. Saying something twice does no harm."""
EVERY_S = 1.0
STILL_S = 5.0
"""How long nothing may move in a pause before samples are started again."""


class Janitor:
    """Watches over one run. `measure` tells what it takes on the server."""

    def __init__(self, log: Log, measure: Callable[[], Use], settings: RedisConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._measure = measure
        self._clock = clock
        self._most = settings.memory_budget
        self._brake = Brake(Marks(settings.memory_resume_at, settings.memory_pause_at), STILL_S)
        self._position = 0
        self._look_at = clock() + EVERY_S

    def take(self, entries: Iterable[Entry]) -> None:
        """Takes in entries that are on the disk, then looks whether it is time to measure."""
        now = self._clock()
        for entry in entries:
            self._brake.apply(entry, now)
            self._position = entry.position
        if now >= self._look_at:
            self._look_at = now + EVERY_S
            self._look(now)

    def _look(self, now: float) -> None:
        use = self._measure()
        event = self._brake.decide(use.run, use.budget(self._most), now)
        if event is None:
            return
        logger.warning("memory: event=%s used=%d budget=%d", event.kind, event.used_bytes, event.budget_bytes)
        check_emitter(JANITOR.source, event)
        position = self._log.append(JANITOR, [Draft(event, derived=False, cause=self._position, at=time.time_ns())])
        # At once, and not when it is read: the next look must know of it.
        self._brake.apply(Entry(position, JANITOR.source, 0, False, self._position, 0, "", event), now)
