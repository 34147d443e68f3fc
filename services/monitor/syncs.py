"""How weights came to the replicas, folded from the log: how often, which way, and how many bytes were read of how many there are.

WeightsPublished (what all of them are) ─┐
WeightsApplied, ReplicaAwake ────────────┴─▶ a count for each way
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.events import Event, ReplicaAwake, WeightsApplied, WeightsPublished


@dataclass(slots=True)
class Ways:
    """Syncs that went one way."""

    count: int = 0
    num_bytes: int = 0
    """Read or received."""
    full_bytes: int = 0
    """What the whole weights would have been."""
    seconds: float = 0.0

    def add(self, num_bytes: int, full_bytes: int, seconds: float) -> None:
        self.count += 1
        self.num_bytes += num_bytes
        self.full_bytes += full_bytes
        self.seconds += seconds


class WeightSyncs:
    """Fold of what was published, and of what replicas say they have loaded. Those of older versions do not say how."""

    def __init__(self) -> None:
        self.by_transport: dict[str, Ways] = {}
        self.deltas = 0
        """Publications that had what changed beside them."""
        self.publications = 0
        self._full: dict[tuple[int, int], int] = {}

    @property
    def num_bytes(self) -> int:
        """Read or received by all replicas."""
        return sum(ways.num_bytes for ways in self.by_transport.values())

    @property
    def full_bytes(self) -> int:
        """What it would have been had all syncs been of the whole weights."""
        return sum(ways.full_bytes for ways in self.by_transport.values())

    def apply(self, event: Event) -> None:
        """Takes in one event."""
        match event:
            case WeightsPublished():
                self.publications += 1
                self.deltas += event.delta is not None
                self._full[event.version, event.revision] = event.num_bytes
            case WeightsApplied() | ReplicaAwake() if event.transport:
                full = self._full.get((event.version, event.revision), 0)
                self.by_transport.setdefault(event.transport, Ways()).add(event.num_bytes, full, event.seconds)
            case _:
                pass

    def as_dict(self) -> dict[str, object]:
        """As summary.json has it."""
        return {
            "publications": self.publications,
            "deltas": self.deltas,
            "num_bytes": self.num_bytes,
            "full_bytes": self.full_bytes,
            "by_transport": {
                name: {"count": ways.count, "num_bytes": ways.num_bytes, "full_bytes": ways.full_bytes, "seconds": ways.seconds}
                for name, ways in sorted(self.by_transport.items())
            },
        }
