"""Who should show a sign of life, folded from the log: what a lapsed lease is measured by where no supervisor says who is gone.

ServiceStarted, PolicyAttached ─▶ expected ─ServiceStopped, PolicyDetached, ServiceLost─▶ not expected, until it starts again
"""

from __future__ import annotations

from bus.entry import Entry, role_of
from bus.events import PolicyAttached, PolicyDetached, ServiceLost, ServiceStarted, ServiceStopped

WATCHED = ("archiver", "trainer", "rollouter", "policy", "replica")


class Expected:
    """Feed it every entry once, in order."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        """Source -> epoch of the incarnation that should be alive."""

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        match entry.event:
            case ServiceStarted() | PolicyAttached(mode="active") if role_of(entry.source) in WATCHED:
                self.epochs[entry.source] = entry.epoch
            case ServiceStopped() | PolicyDetached() if self.epochs.get(entry.source) == entry.epoch:
                del self.epochs[entry.source]
            case ServiceLost() as lost if self.epochs.get(lost.service, 0) <= lost.epoch:
                self.epochs.pop(lost.service, None)
            case _:
                pass
