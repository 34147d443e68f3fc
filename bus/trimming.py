"""What the janitor of a run's log works with: how far each consumer has durably got, and forgetting what nobody needs any more.

consumer ─▶ Progress.tell(position) ─▶ positions ─▶ janitor: lowest position of the essential ones ─▶ Trimming.trim(position)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import cast

from bus.connection import Connection, Script
from bus.errors import LogChanged, LogMissing, LogUnavailable, ServerError
from bus.inboxes import Inboxes
from bus.keys import Keys
from bus.patience import PATIENCE_S, persist
from bus.wire import Argument, Reply

logger = logging.getLogger(__name__)

TRIM = Script.load("trim.lua")
REPORT = Script.load("report.lua")
STEP_ENTRIES = 500
"""Most entries forgotten in one call; the server answers nobody else meanwhile, 0.2 ms."""
STEP_INBOXES = 25
"""Most inboxes that are looked at in one call."""
MOST_INBOXES = 100
"""That have their turn each time: a thousand take the server 10 ms, and what stays a few turns longer is little."""
TELL_EVERY_S = 1.0


class Trimming:
    """Positions and trimming of one log. Not thread-safe: one client a thread."""

    def __init__(self, url: str, run: str, log_id: str, patience_s: float = PATIENCE_S) -> None:
        self._keys = Keys(run)
        self._log_id = log_id
        self._connection = Connection(url)
        self._patience_s = patience_s
        self._inboxes = Inboxes(self._connection, self._keys, patience_s)
        self._turn = 0
        """Whose inbox is trimmed next."""

    def close(self) -> None:
        self._connection.close()

    def report(self, consumer: str, position: int) -> None:
        """Says that `consumer` needs no entry up to and including `position`, even if it starts anew."""
        persist(lambda: self._connection.run(REPORT, [self._keys.positions], [consumer, position]), self._patience_s)

    def positions(self) -> dict[str, int]:
        """Consumer -> the position it reported last."""
        flat = cast("list[bytes]", self._call("HGETALL", self._keys.positions))
        return {consumer.decode(): int(position) for consumer, position in zip(flat[::2], flat[1::2], strict=True)}

    def trim(self, up_to: int) -> int:
        """Forgets entries with positions up to and including `up_to`; returns how many. The newest entry always stays.

        Mirrored ones, too, of at most MOST_INBOXES replicas, and of the next ones the next time. Raises LogMissing, LogChanged,
        LogUnavailable.
        """
        forgotten, more = 0, 1
        while more:
            count, more = self._trim_step(up_to, ())
            forgotten += count
        replicas = self._whose_turn()
        for first in range(0, len(replicas), STEP_INBOXES):
            self._trim_step(up_to, replicas[first : first + STEP_INBOXES])
        return forgotten

    def _whose_turn(self) -> Sequence[str]:
        names = self._inboxes.names()
        turn = self._turn % max(1, len(names))
        found = [*names[turn:], *names[:turn]][:MOST_INBOXES]
        self._turn = turn + len(found)
        return found

    def _trim_step(self, up_to: int, replicas: Sequence[str]) -> tuple[int, int]:
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


class Progress:
    """Tells how far one consumer has durably got, about once a second. Not thread-safe.

    One try each time: who cannot tell it now works on, and tells it later.
    """

    def __init__(self, url: str, run: str, consumer: str) -> None:
        self._key = Keys(run).positions
        self._consumer = consumer
        self._connection = Connection(url)
        self._told = 0
        self._tell_at = 0.0
        self._may_tell = True

    def tell(self, position: int) -> None:
        """`consumer` needs no entry up to and including `position`, even if it starts anew. Told if that is news and it is time."""
        if position != self._told and time.monotonic() >= self._tell_at:
            self._tell(position)

    def close(self, position: int) -> None:
        """Tells the last position at once."""
        if position != self._told:
            self._tell(position)
        self._connection.close()

    def _tell(self, position: int) -> None:
        self._tell_at = time.monotonic() + TELL_EVERY_S
        if not self._may_tell:
            return
        try:
            self._connection.run(REPORT, [self._key], [self._consumer, position])
            self._told = position
        except LogUnavailable:
            return  # whoever appends or reads says so
        except ServerError as error:
            logger.warning("%s cannot tell how far it is, so the log is not trimmed behind it: error=%s", self._consumer, error)
            self._may_tell = False
