"""How much of the server's memory one run takes, without looking at every key, and how much more it could take.

payloads: counted by the scripts that write and remove them      log, inboxes, the rest: estimated by the server from a few of their nodes
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.connection import Connection
from bus.inboxes import Inboxes
from bus.keys import Keys
from bus.patience import PATIENCE_S, persist
from bus.server_checks import memory_of
from bus.wire import Reply

FULL_SHARE = 0.95
"""Of the server's limit: when that is used it counts as full, so that a run can still say why it ends."""
MOST_INBOXES = 50
"""Inboxes that are asked for again in one look: of a thousand each has its turn every twentieth time."""


@dataclass(frozen=True, slots=True)
class Use:
    """In bytes. `room`: what is left on the server, whoever takes it; None: it has no limit."""

    run: int
    room: int | None

    def budget(self, most: int) -> int:
        """What the run may take, which is `most` if the server has that."""
        return most if self.room is None else min(most, self.run + self.room)


class MemoryUse:
    """Measures one run. Not thread-safe: one client a thread."""

    def __init__(self, url: str, run: str, patience_s: float = PATIENCE_S) -> None:
        self._keys = Keys(run)
        self._connection = Connection(url)
        self._patience_s = patience_s
        self._inboxes = Inboxes(self._connection, self._keys, patience_s)
        self._inbox_bytes: dict[str, int] = {}
        """What each inbox took when it was asked for last; who was asked longest ago comes first."""

    def close(self) -> None:
        self._connection.close()

    def measure(self) -> Use:
        """What the run takes now. Raises LogUnavailable, ServerError."""
        run = self._payloads() + self._of_key(self._keys.log) + self._of_key(self._keys.meta) + self._of_inboxes()
        used, limit = persist(lambda: memory_of(self._connection), self._patience_s)
        return Use(run, max(0, round(FULL_SHARE * limit) - used) if limit else None)

    def _payloads(self) -> int:
        counted = self._call("HGET", self._keys.size, "bytes")
        return int(counted) if isinstance(counted, bytes) else 0

    def _of_inboxes(self) -> int:
        known = self._inbox_bytes
        there = dict.fromkeys(map(self._keys.inbox, self._inboxes.names()))
        new = [key for key in there if key not in known]
        for key in (*new, *list(known)[:MOST_INBOXES]):
            known.pop(key, None)
            if key in there:
                known[key] = self._of_key(key)
        return sum(known.values())

    def _of_key(self, key: str) -> int:
        used = self._call("MEMORY", "USAGE", key)
        return used if isinstance(used, int) else 0

    def _call(self, *arguments: str) -> Reply:
        return persist(lambda: self._connection.call(*arguments), self._patience_s)
