"""Which inboxes a run has. Their list is a part of `meta`, among thousands of fields about clients, so it is looked through in portions.

    names() ─▶ HSCAN meta, a portion ─▶ … ─▶ the first time all of it, later a few portions a call, on from where the last call ended

So who has just got his first request may be missing for some calls. Inboxes never go away before their run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from bus.connection import Connection
from bus.keys import Keys
from bus.patience import persist

PREFIX = b"inbox:"
FIELDS = 200
"""That the server looks at in one go, about; a thousand take it 0.7 ms, during which it answers nobody else."""
PORTIONS = 4
"""Most in one call, but for the first."""


class Inboxes:
    """Of one run. Not thread-safe: one a thread."""

    def __init__(self, connection: Connection, keys: Keys, patience_s: float) -> None:
        self._connection = connection
        self._meta = keys.meta
        self._patience_s = patience_s
        self._known: dict[str, None] = {}
        self._cursor = b"0"
        self._looked = False
        """At all of it, once."""

    def names(self) -> Sequence[str]:
        """Replicas with an inbox. Raises LogUnavailable, ServerError."""
        portions = 0
        while not portions or (self._cursor != b"0" and (not self._looked or portions < PORTIONS)):
            self._look()
            portions += 1
        self._looked = True
        return list(self._known)

    def _look(self) -> None:
        command = ("HSCAN", self._meta, self._cursor, "MATCH", f"{PREFIX.decode()}*", "COUNT", FIELDS)
        cursor, flat = cast("tuple[bytes, list[bytes]]", persist(lambda: self._connection.call(*command), self._patience_s))
        self._known.update((field.removeprefix(PREFIX).decode(), None) for field in flat[::2])
        self._cursor = cursor
