"""How long the answers that a replica kept over an update stood still for it.

WeightUpdateRequested(keep) ── it goes on generating until it takes them ──▶ frozen ──▶ WeightsApplied(seconds)
"""

from __future__ import annotations

from bus.events import Event, WeightsApplied, WeightUpdateRequested


class Frozen:
    """Fold of the updates of all replicas."""

    def __init__(self) -> None:
        self._asked_at: dict[str, int] = {}
        """Replica that is to keep what it has in flight -> when it was asked, in nanoseconds."""

    def apply(self, event: Event, now: int) -> int:
        """Takes in one event; the nanoseconds for which a replica's answers were frozen, which are over with it."""
        match event:
            case WeightUpdateRequested(mode="keep"):
                self._asked_at[event.replica] = now
            case WeightUpdateRequested():
                self._asked_at.pop(event.replica, None)
            case WeightsApplied():
                asked_at = self._asked_at.pop(event.replica, now)
                # The clock of the replica, which has measured the seconds, and that of the run need not go alike.
                return min(now - asked_at, round(event.seconds * 1e9))
            case _:
                pass
        return 0
