"""What one client of a log on a server knows of it, and what it asks to find out that the log is not that one any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from bus.errors import LogChanged
from bus.keys import Keys
from bus.stream import chain_of
from bus.wire import Argument, Reply


class Place:
    """How far a client is. Its queries are commands for the server, whose replies it checks."""

    def __init__(self, keys: Keys, log_id: str) -> None:
        self._keys = keys
        self._log_id = log_id
        self.top = 0
        """Highest position that this client knows: it read or wrote it, or was asked for what comes after it."""
        self._last_read: tuple[int, str] = (0, "")
        """Position and chain of the entry that this client read last."""

    def knows(self, position: int) -> None:
        """The log goes up to there."""
        self.top = max(self.top, position)

    def has_read(self, position: int, chain: str) -> None:
        """This entry was read last."""
        self._last_read = (position, chain)
        self.knows(position)

    def chain_at(self, position: int) -> str | None:
        """The chain of the entry there, if it is the one that was read last."""
        last, chain = self._last_read
        return chain if 0 < position == last else None

    def end_query(self, *more: str) -> Sequence[Argument]:
        """For the log's id and its newest position, and `more` fields of `meta`."""
        return ("HMGET", self._keys.meta, "log", "position", *more)

    def entry_query(self) -> Sequence[Sequence[Argument]]:
        """For the entry that was read last; nothing if none was."""
        position = self._last_read[0]
        return (("XRANGE", self._keys.log, f"{position}-0", f"{position}-0"),) if position else ()

    def check_end(self, reply: Reply) -> int:
        """Position of the newest entry. Raises LogChanged when the log is gone, another one, or shorter than what was read."""
        known, last = cast("list[bytes | None]", reply)
        if known is None or last is None:
            raise LogChanged(f"run {self._keys.run}: the log is gone, this client knows it up to {self.top}: it was deleted")
        if known.decode() != self._log_id:
            raise self.is_another(known.decode())
        if int(last) < self.top:
            raise self.was_rolled_back(int(last))
        return int(last)

    def check_entry(self, replies: Sequence[Reply]) -> None:
        """Raises LogChanged when the reply to `entry_query`, if there is one, has another entry than was read there."""
        position, chain = self._last_read
        for items in cast("Sequence[list[Reply]]", replies):
            if items and chain_of(items[0]) != chain:
                raise LogChanged(
                    f"run {self._keys.run}: entry {position} has chain {chain_of(items[0])}, this client read {chain}: "
                    "the log was rolled back and went on differently; start this service anew"
                )

    def is_another(self, log_id: str) -> LogChanged:
        return LogChanged(
            f"run {self._keys.run}: the log is {log_id}, this client knows {self._log_id}: it was recreated; start this service anew"
        )

    def was_rolled_back(self, last: int) -> LogChanged:
        return LogChanged(f"run {self._keys.run}: the log ends at {last}, this client knows it up to {self.top}: it was rolled back")
