"""Who can read which published weights: those in one machine's memory are there for nobody on another one, until they are shared.

    WeightsPublished(machine=A)  ─▶ replicas on A          WeightsPublished(machine="")  ─▶ everybody
                └─ WeightsShared ─▶ everybody

Where machines are not named, as in older logs, everybody can read everything. All cores share this one fold.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.entry import Entry
from bus.events import ServiceLost, ServiceStarted, WeightsPublished, WeightsShared
from bus.sources import REPLICA_PREFIX


class Reach:
    """Fold of where replicas and weights are; feed it every entry once, in order."""

    def __init__(self) -> None:
        self.machines: dict[str, str] = {}
        """Replica -> machine of its newest incarnation; one that was lost may come back, and until then it is where it was."""
        self.newest: WeightsPublished | None = None
        self._shared: dict[tuple[int, int], None] = {}
        """(version, revision) of weights that are in somebody's memory, and in the folder, too."""

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        match event:
            case ServiceStarted() if entry.source.startswith(REPLICA_PREFIX):
                self.machines[entry.source.removeprefix(REPLICA_PREFIX)] = event.machine
            case ServiceLost(restarting=False) if event.service.startswith(REPLICA_PREFIX):
                self.machines.pop(event.service.removeprefix(REPLICA_PREFIX), None)
            case WeightsPublished():
                self.newest = event
            case WeightsShared():
                self._shared[event.version, event.revision] = None
            case _:
                pass

    def can_read(self, replica: str, weights: WeightsPublished) -> bool:
        """This replica finds these weights, as far as is known."""
        here = self.machines.get(replica, "")
        return not here or self.is_shared(weights) or weights.machine == here

    def can_read_newest(self, replica: str) -> bool:
        """This replica finds the weights that were published last; as long as none are, there is nothing to find."""
        return self.newest is None or self.can_read(replica, self.newest)

    def is_shared(self, weights: WeightsPublished) -> bool:
        """These weights are in a folder that everybody sees."""
        return not weights.machine or (weights.version, weights.revision) in self._shared

    def awaited(self, published: Iterable[WeightsPublished]) -> list[WeightsPublished]:
        """Those of them that some replica cannot read yet."""
        hidden = [weights for weights in published if not self.is_shared(weights)]
        return [weights for weights in hidden if not all(self.can_read(replica, weights) for replica in self.machines)]

    def is_beyond(self, machine: str) -> bool:
        """Some replica is on another machine than this one."""
        return bool(machine) and any(here not in ("", machine) for here in self.machines.values())
