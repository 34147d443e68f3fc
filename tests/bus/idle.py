"""Readers that wait for over a minute without a word from the server, in threads beside whatever else is tested meanwhile."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from types import TracebackType

from bus.connection import Connection
from bus.entry import Entry
from bus.errors import LogUnavailable
from bus.redis_log import RedisLog
from bus.wire import Reply
from tests.bus.factories import plan

IDLE_MS = 61_000
LATE_MS = 7_200_000
"""How long the reader waits for what comes after the silence: longer than any session."""


class IdleReads:
    """On one server: a wait in one command, and a reader of a run's log to which nothing is written until the test does."""

    def __init__(self, url: str) -> None:
        self.silence: Reply = b"no answer yet"
        self.silence_s = 0.0
        self.nothing: list[Entry] | None = None
        self.late: list[Entry] = []
        self.writer = RedisLog.create(url, plan("idle"), at=1)
        self._reader = RedisLog.open(url, "idle")
        self._bare = Connection(url, answer_s=None)
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._wait_bare, self._wait_for_entries)]

    def __enter__(self) -> IdleReads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Where a session ends before the silence, the server's end ends the reads."""
        self.writer.close()

    def join_bare(self) -> None:
        self._threads[0].join()

    def join_reader(self) -> None:
        self._threads[1].join()

    def _wait_bare(self) -> None:
        with suppress(LogUnavailable), closing(self._bare):
            began = time.monotonic()
            self.silence = self._bare.call("XREAD", "BLOCK", IDLE_MS, "STREAMS", "a stream that nobody writes", "$")
            self.silence_s = time.monotonic() - began

    def _wait_for_entries(self) -> None:
        with suppress(LogUnavailable), self._reader:
            self.nothing = self._reader.read(1, 10, IDLE_MS)
            self.late = self._reader.read(1, 10, LATE_MS)
