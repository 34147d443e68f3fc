"""When somebody who waits is told so: not of a short wait, and of a long one once in a while."""

from __future__ import annotations

import time
from collections.abc import Callable


class Telling:
    """Of one wait, which begins now: first after `after_s`, then every `again_s`. `clock` is monotonic, in seconds."""

    def __init__(self, after_s: float, again_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s = again_s
        self._clock = clock
        self._began = clock()
        self._told_at_s = after_s

    @property
    def waited_s(self) -> float:
        """How long it takes by now."""
        return self._clock() - self._began

    @property
    def rest_s(self) -> float:
        """How long it is until the next time; at most 0: it is now."""
        return self._told_at_s - self.waited_s

    def is_due(self) -> bool:
        """Whether to tell of it now; then it is not due again for a while."""
        waited = self.waited_s
        if waited < self._told_at_s:
            return False
        self._told_at_s = waited + self._again_s
        return True
