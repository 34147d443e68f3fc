"""What must hold of weights on their way from the trainer to the replicas.

- Changes are published against the publication before, of the same incarnation of the trainer, and take no more bytes than all of it.
- A replica is told of changes as they were published.
- It takes changes only if what it last took from the copy is what they are against; an incarnation's first weights are whole (C-19).
- A replica is told only of weights that it can read where it is: in its own machine's memory, or in the folder that all share.
- It takes them directly only by a way that was offered for them.
- One that failed loads nothing any more.
"""

from __future__ import annotations

from bus.entry import Entry
from bus.events import ReplicaAwake, ReplicaFailed, ServiceStarted, WakeRequested, WeightsApplied, WeightsPublished, WeightUpdateRequested
from bus.reach import Reach
from bus.sources import REPLICA_PREFIX

Weights = tuple[int, int]
"""(version, revision)"""
DELTA = "delta"
"""`transport` of weights that came as changes."""
FROM_THE_COPY = ("", "shm", "file", DELTA)
"""`transport` of weights that came from the copy that is always there; any other is a direct way."""
MOST = 1.01
"""Share of the whole weights' bytes that changes may take."""


class SyncInvariants:
    """Fold of a whole log; `apply` returns what an entry breaks, in words."""

    def __init__(self) -> None:
        self._published: dict[Weights, WeightsPublished] = {}
        self._newest: tuple[Weights, int] | None = None
        """And the trainer's epoch."""
        self._held: dict[tuple[str, int], Weights] = {}
        """(replica, epoch) -> what it took last from the copy that is always there. What came directly is on its devices only."""
        self._failed: set[tuple[str, int]] = set()
        self._reach = Reach()
        self._epochs: dict[str, int] = {}
        """Replica -> its newest incarnation."""

    def apply(self, entry: Entry) -> list[str]:
        """Takes in one entry."""
        event = entry.event
        self._reach.apply(entry)
        match event:
            case ServiceStarted() if entry.source.startswith(REPLICA_PREFIX):
                self._epochs[entry.source.removeprefix(REPLICA_PREFIX)] = entry.epoch
            case WeightsPublished():
                return self._publish(event, entry.epoch)
            case WakeRequested() | WeightUpdateRequested():
                return self._tell(event)
            case WeightsApplied() | ReplicaAwake():
                return self._load(event, entry.epoch)
            case ReplicaFailed():
                self._failed.add((event.replica, entry.epoch))
            case _:
                pass
        return []

    def _publish(self, event: WeightsPublished, epoch: int) -> list[str]:
        before, self._newest = self._newest, ((event.version, event.revision), epoch)
        self._published[event.version, event.revision] = event
        if event.delta is None:
            return []
        base, broken = (event.delta.base_version, event.delta.base_revision), []
        if before != (base, epoch):
            broken.append(f"changes of version {event.version} are against {base}, this trainer published {before} before")
        if event.delta.num_bytes > MOST * event.num_bytes:
            broken.append(f"changes of version {event.version} take {event.delta.num_bytes} bytes, all of it {event.num_bytes}")
        return broken

    def _tell(self, event: WakeRequested | WeightUpdateRequested) -> list[str]:
        published = self._published.get((event.version, event.revision))
        if published is None:
            return []
        broken = []
        if _offer(published) != _offer(event):
            broken.append(f"{event.replica} was told of other weights {event.version} than were published")
        # One that has begun again elsewhere meanwhile takes nothing that its predecessor was asked.
        if event.epoch == self._epochs.get(event.replica) and not self._reach.can_read(event.replica, published):
            where = self._reach.machines.get(event.replica)
            broken.append(f"{event.replica} on {where} was told of weights {event.version}, which are in the memory of {published.machine}")
        return broken

    def _load(self, event: WeightsApplied | ReplicaAwake, epoch: int) -> list[str]:
        where, now = (event.replica, epoch), (event.version, event.revision)
        published, before = self._published.get(now), self._held.get(where)
        if event.transport in FROM_THE_COPY:
            self._held[where] = now
        broken = [f"{event.replica} loaded weights {event.version} after it had failed"] if where in self._failed else []
        if event.transport == DELTA and published is not None:
            delta = published.delta
            if delta is None or before != (delta.base_version, delta.base_revision):
                broken.append(f"{event.replica}, which had {before}, took changes of version {event.version} against {delta}")
        if event.transport not in FROM_THE_COPY and published is not None:
            offered = published.direct.transports if published.direct is not None else ()
            if event.transport not in offered:
                broken.append(f"{event.replica} took version {event.version} by {event.transport}, which was not offered: {offered}")
        return broken


def _offer(event: WeightsPublished | WakeRequested | WeightUpdateRequested) -> tuple[object, ...]:
    return event.uri, event.digest, event.delta, event.direct
