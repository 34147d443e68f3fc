"""When a service that ended is started again: after growing pauses, and not for ever."""

from __future__ import annotations

from services.config import SupervisorConfig


class Restarts:
    """Of one service. Times are those of one monotonic clock."""

    def __init__(self, config: SupervisorConfig) -> None:
        self._config = config
        self._in_a_row = 0

    def delay_s(self, lived_s: float) -> float | None:
        """How long to wait before the next start, after an incarnation that lived for `lived_s`; None: it is given up."""
        config = self._config
        if lived_s >= config.healthy_after_s:
            self._in_a_row = 0
        if self._in_a_row >= config.max_restarts:
            return None
        delay = min(config.longest_delay_s, config.first_delay_s * 2.0**self._in_a_row)
        self._in_a_row += 1
        return delay
