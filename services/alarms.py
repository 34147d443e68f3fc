"""The deadlines of one incarnation on its monotonic clock: armed when the core names them, disarmed when it no longer does."""

from __future__ import annotations

from collections.abc import Iterable

from bus.core import Deadline

SAID_AGAIN_S = 60.0
"""A missed deadline is not said again before it has had time to come back from the log."""


class Alarms:
    """Time is passed in, in seconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._armed: dict[str, tuple[float, float]] = {}
        """Deadline -> (when it passes, its seconds)."""

    def missed(self, named: Iterable[Deadline], now: float) -> list[Deadline]:
        """Of all that the core names now, what has passed and was not told yet."""
        self._armed = {deadline.key: self._arm(deadline, now) for deadline in named}
        late = [Deadline(key, seconds) for key, (at, seconds) in self._armed.items() if at <= now]
        self._armed.update((deadline.key, (now + SAID_AGAIN_S, deadline.seconds)) for deadline in late)
        return late

    def next_at(self, otherwise: float) -> float:
        """When the next one passes."""
        return min((at for at, _ in self._armed.values()), default=otherwise)

    def _arm(self, deadline: Deadline, now: float) -> tuple[float, float]:
        """It counts from when it was named first, also when its seconds have changed since: a setting was changed, or a lend amended."""
        at, before = self._armed.get(deadline.key, (now + deadline.seconds, deadline.seconds))
        return at - before + deadline.seconds, deadline.seconds
