"""Who is still there after the run has ended, folded from the log: the recording shall hold their last words.

ServiceStarted, PolicyAttached ─▶ here ─ServiceStopped, PolicyDetached, ServiceLost (not restarting), ReplicaLost─▶ gone
"""

from __future__ import annotations

from bus.entry import Entry
from bus.events import PolicyAttached, PolicyDetached, ReplicaLost, RunEnded, ServiceLost, ServiceStarted, ServiceStopped
from bus.sources import REPLICA_PREFIX

KINDS = tuple(event.kind for event in (PolicyAttached, PolicyDetached, ReplicaLost, RunEnded, ServiceLost, ServiceStarted, ServiceStopped))
"""All that this fold looks at."""


class Attendance:
    """Feed it every entry of `KINDS`, in order."""

    def __init__(self) -> None:
        self.ended = False
        """The run is over."""
        self.here: dict[str, int] = {}
        """Source -> its newest incarnation, if that has not gone."""

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        match entry.event:
            case ServiceStarted() | PolicyAttached():
                self.here[entry.source] = entry.epoch
            case ServiceStopped() | PolicyDetached():
                self._leave(entry.source, entry.epoch)
            case ServiceLost(restarting=False) as event:
                self._leave(event.service, event.epoch)
            case ReplicaLost() as event:
                self._leave(f"{REPLICA_PREFIX}{event.replica}", event.epoch)
            case RunEnded():
                self.ended = True
            case _:
                pass

    def _leave(self, source: str, epoch: int) -> None:
        if self.here.get(source, epoch + 1) <= epoch:
            del self.here[source]
