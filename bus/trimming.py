"""What the janitor of a run's log works with: how far each consumer has durably got, and forgetting what nobody needs any more.

consumer ─▶ report(consumer, position) ─▶ positions ─▶ janitor: lowest position of the essential ones ─▶ trim(position)
"""

from __future__ import annotations

from typing import cast

from bus.connection import PATIENCE_S, Argument, Connection, Reply, Script, persist
from bus.errors import LogChanged, LogMissing
from bus.keys import Keys

TRIM = Script.load("trim.lua")
STEP_ENTRIES = 10_000
"""Most entries forgotten in one call; the server answers nobody else meanwhile."""


class Trimming:
    """Positions and trimming of one log. Not thread-safe: one client a thread."""

    def __init__(self, url: str, run: str, log_id: str, patience_s: float = PATIENCE_S) -> None:
        self._keys = Keys(run)
        self._log_id = log_id
        self._connection = Connection(url)
        self._patience_s = patience_s

    def close(self) -> None:
        self._connection.close()

    def report(self, consumer: str, position: int) -> None:
        """Says that `consumer` needs no entry up to and including `position`, even if it starts anew."""
        self._call("HSET", self._keys.positions, consumer, position)

    def positions(self) -> dict[str, int]:
        """Consumer -> the position it reported last."""
        flat = cast("list[bytes]", self._call("HGETALL", self._keys.positions))
        return {consumer.decode(): int(position) for consumer, position in zip(flat[::2], flat[1::2], strict=True)}

    def trim(self, up_to: int) -> int:
        """Forgets entries with positions up to and including `up_to`, mirrored ones too; returns how many of the log.

        The newest entry always stays. Raises LogMissing, LogChanged, LogUnavailable.
        """
        forgotten, more = 0, 1
        while more:
            count, more = self._trim_step(up_to)
            forgotten += count
        return forgotten

    def _trim_step(self, up_to: int) -> tuple[int, int]:
        fields = cast("list[bytes]", self._call("HKEYS", self._keys.meta))
        replicas = [field.decode().removeprefix("inbox:") for field in fields if field.startswith(b"inbox:")]
        keys = [self._keys.log, self._keys.meta, *(self._keys.inbox(replica) for replica in replicas)]
        arguments: list[Argument] = [self._log_id, up_to, STEP_ENTRIES, *replicas]
        reply = persist(lambda: self._connection.run(TRIM, keys, arguments), self._patience_s)
        match reply:
            case [b"ok", int(forgotten), int(more)]:
                return forgotten, more
            case [b"another", bytes(log_id)]:
                raise LogChanged(f"run {self._keys.run}: the log is {log_id.decode()}, this janitor trims {self._log_id}: it was recreated")
            case _:
                raise LogMissing(f"run {self._keys.run}: the server has no log of it any more, so there is nothing to trim")

    def _call(self, *arguments: str | int) -> Reply:
        return persist(lambda: self._connection.call(*arguments), self._patience_s)
