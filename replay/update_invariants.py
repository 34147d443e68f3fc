"""What must hold of weights and the answers that they generate: who says what drew a token had those weights then (C-18).

- Every token of an attempt is of weights that its replica served between the request and its outcome.
- When a replica has taken weights, what it was to abort for them has its outcome; only what it was to keep may still be in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.entry import Entry
from bus.events import (
    GenerationFinished,
    GenerationRequested,
    ReplicaAwake,
    ReplicaLost,
    ServiceStarted,
    WeightsApplied,
    WeightUpdateRequested,
)
from bus.sources import REPLICA_PREFIX

Incarnation = tuple[str, int]
"""(replica, epoch)"""


@dataclass(slots=True)
class Attempt:
    """One that is in flight."""

    position: int
    prefix_tokens: int
    first: int
    """Which of the weights that its replica served was the newest when it was requested."""


class UpdateInvariants:
    """Fold of a whole log; `apply` returns what an entry breaks, in words."""

    def __init__(self) -> None:
        self._in_flight: dict[Incarnation, dict[tuple[str, int], Attempt]] = {}
        self._served: dict[Incarnation, list[int]] = {}
        """Versions, one after the other."""
        self._aborting: dict[Incarnation, dict[tuple[int, int], int]] = {}
        """(version, revision) that it was asked to load, with all in flight aborted -> position of that request."""

        self._gone: dict[str, int] = {}
        """Replica -> its newest incarnation that was lost or replaced. It may live on: what still comes of it counts for nobody."""

    def apply(self, entry: Entry) -> list[str]:
        """Takes in one entry."""
        event = entry.event
        match event:
            case GenerationRequested() if event.epoch > self._gone.get(event.replica, 0):
                where = (event.replica, event.epoch)
                attempt = Attempt(entry.position, event.prefix_tokens, max(0, len(self._served.get(where, ())) - 1))
                self._in_flight.setdefault(where, {})[event.request, event.attempt] = attempt
            case GenerationFinished():
                return self._finish((event.replica, entry.epoch), event)
            case WeightUpdateRequested(mode="abort"):
                self._aborting.setdefault((event.replica, event.epoch), {})[event.version, event.revision] = entry.position
            case WeightsApplied():
                return self._update((event.replica, entry.epoch), event)
            case ReplicaAwake():
                self._served.setdefault((event.replica, entry.epoch), []).append(event.version)
            case ReplicaLost():
                self._forget(event.replica, event.epoch)
            case ServiceStarted() if entry.source.startswith(REPLICA_PREFIX):
                self._forget(entry.source.removeprefix(REPLICA_PREFIX), entry.epoch - 1)
            case _:
                pass
        return []

    def _finish(self, where: Incarnation, event: GenerationFinished) -> list[str]:
        attempt = self._in_flight.get(where, {}).pop((event.request, event.attempt), None)
        if attempt is None:
            return []
        served, left, others = self._served.get(where, [])[attempt.first :], attempt.prefix_tokens, []
        for version, count in event.version_spans:
            if count > left and version not in served:
                others.append(version)
            left = max(0, left - count)
        return [f"{event.request} has tokens of weights {others}, its replica {where[0]} had {served} meanwhile"] if others else []

    def _update(self, where: Incarnation, event: WeightsApplied) -> list[str]:
        self._served.setdefault(where, []).append(event.version)
        asked = self._aborting.get(where, {}).pop((event.version, event.revision), 0)
        left = [request for (request, _), attempt in self._in_flight.get(where, {}).items() if attempt.position < asked]
        return [f"{where[0]} has taken weights {event.version} with {left} in flight, which it was to abort first"] if left else []

    def _forget(self, replica: str, epoch: int) -> None:
        self._gone[replica] = max(epoch, self._gone.get(replica, 0))
        for of_incarnation in (self._in_flight, self._served, self._aborting):
            for gone in [where for where in of_incarnation if where[0] == replica and where[1] <= epoch]:
                del of_incarnation[gone]
