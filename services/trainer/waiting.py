"""How long the trainer waited for samples with its devices home: a monotonic stopwatch, read once a step."""

from __future__ import annotations

import threading
from collections.abc import Callable


class WaitingClock:
    """Runs while the trainer is granted, home, and has no batch. Told by the main thread, read by the learner's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._seconds = 0.0

    def look(self, waiting: bool) -> None:
        """Says whether the trainer waits now."""
        with self._lock:
            now = self._clock()
            if self._since is not None:
                self._seconds += now - self._since
            self._since = now if waiting else None

    def take(self) -> float:
        """Seconds waited since the last call."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
            return seconds
