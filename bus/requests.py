"""Generation requests without an outcome, folded from the log; rollouter and controller share this fold.

Natural key of a request: (request, attempt). Its one outcome is the first of: `GenerationFinished`, or `lost` because the incarnation it
was sent to is gone (`ServiceStarted` of a higher epoch, or `ReplicaLost`), also when the request lands in the log after that.
"""

from __future__ import annotations

from typing import NamedTuple

from bus.entry import Entry
from bus.events import Event, GenerationFinished, GenerationRequested, ReplicaLost, ServiceStarted
from bus.sources import REPLICA_PREFIX

Key = tuple[str, int]
ANSWERING = frozenset[type[Event]]({GenerationRequested, GenerationFinished})
"""Nine in ten entries of a log are of these types: who does not look at them leaves at once."""


class Outcome(NamedTuple):
    """The end of a request: `finished` is None when it was lost with its replica."""

    request: GenerationRequested
    finished: GenerationFinished | None


class Requests:
    """Fold of the requests in flight. `apply` returns the outcomes that an entry brought."""

    def __init__(self) -> None:
        self.open: dict[str, dict[Key, GenerationRequested]] = {}
        """Replica -> its requests in flight, oldest first."""
        self.gone: dict[str, int] = {}
        """Replica -> highest epoch that is known to be gone."""
        self.changed: dict[str, None] = {}
        """Replicas whose load has changed since whoever looks at it has emptied this."""
        self._where: dict[Key, str] = {}

    def load(self, replica: str) -> int:
        """Requests in flight on a replica."""
        return len(self.open.get(replica, ()))

    def samples(self) -> dict[int, None]:
        """Samples that some replica works on."""
        return {request.sample: None for requests in self.open.values() for request in requests.values() if request.evaluates is None}

    def evaluated(self) -> dict[int, None]:
        """Versions that some replica evaluates."""
        found = (request.evaluates for requests in self.open.values() for request in requests.values())
        return {version: None for version in found if version is not None}

    def apply(self, entry: Entry) -> list[Outcome]:
        """Takes in one entry."""
        event = entry.event
        match event:
            case GenerationRequested():
                return self._begin(event)
            case GenerationFinished():
                request = self._end((event.request, event.attempt))
                return [] if request is None else [Outcome(request, event)]
            case ReplicaLost():
                return self._lose(event.replica, event.epoch)
            case ServiceStarted() if entry.source.startswith(REPLICA_PREFIX):
                return self._lose(entry.source.removeprefix(REPLICA_PREFIX), entry.epoch - 1)
            case _:
                return []

    def _begin(self, event: GenerationRequested) -> list[Outcome]:
        if event.epoch <= self.gone.get(event.replica, 0):
            return [Outcome(event, None)]
        key = (event.request, event.attempt)
        self.open.setdefault(event.replica, {})[key] = event
        self._where[key] = event.replica
        self.changed[event.replica] = None
        return []

    def _end(self, key: Key) -> GenerationRequested | None:
        replica = self._where.pop(key, None)
        if replica is None:
            return None
        self.changed[replica] = None
        return self.open[replica].pop(key)

    def _lose(self, replica: str, epoch: int) -> list[Outcome]:
        self.gone[replica] = max(self.gone.get(replica, 0), epoch)
        lost = [request for request in self.open.get(replica, {}).values() if request.epoch <= epoch]
        for request in lost:
            self._end((request.request, request.attempt))
        return [Outcome(request, None) for request in lost]
