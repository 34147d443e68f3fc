"""Positions and trimming of a log in memory."""

from __future__ import annotations

from bus.memory_log import MemoryStore


class MemoryTrims:
    """What `bus.trimming.Trimming` is for a log on a server."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.told: dict[str, int] = {}

    def positions(self) -> dict[str, int]:
        return dict(self.told)

    def report(self, consumer: str, position: int) -> None:
        self.told[consumer] = position

    def trim(self, up_to: int) -> int:
        before = self._store.first
        self._store.trim(up_to)
        return self._store.first - before
