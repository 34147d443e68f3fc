"""A run's log with its server as a test sees it: clients of it, and what can happen to it from outside."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol, cast

from bus.connection import Connection
from bus.entry import Draft, Producer
from bus.keys import Keys
from bus.log import Blobs, Log
from bus.memory_log import MemoryBlobs, MemoryLog, MemoryStore
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.trimming import Trimming
from tests.bus.factories import plan


class NumberedLog(Log, Protocol):
    """A log that also takes the number of a try, so that a retry can be written down as a test."""

    def append_numbered(self, producer: Producer, drafts: Sequence[Draft], counter: int) -> int: ...


class World(Protocol):
    """One run's log, on whatever server."""

    def client(self) -> NumberedLog:
        """A new client."""

    def blobs(self) -> Blobs:
        """A new client of the payloads."""

    def trim(self, up_to: int) -> None:
        """What the janitor does."""

    def recreate(self) -> None:
        """Somebody deletes the log and creates another one of the same run."""

    def save(self) -> None:
        """A backup is made."""

    def restore(self) -> None:
        """The backup comes back in place of what is there."""

    def close(self) -> None:
        """Ends all clients."""


class MemoryWorld:
    def __init__(self, run: str) -> None:
        self.store = MemoryStore.create(plan(run), at=1)
        self.backup: dict[str, object] = {}

    def client(self) -> NumberedLog:
        return MemoryLog(self.store)

    def blobs(self) -> Blobs:
        return MemoryBlobs(self.store)

    def trim(self, up_to: int) -> None:
        self.store.trim(up_to)

    def recreate(self) -> None:
        self._replace(vars(MemoryStore.create(plan(self.store.run), at=2)))

    def save(self) -> None:
        self.backup = {name: copy.copy(value) for name, value in vars(self.store).items() if name != "grown"}

    def restore(self) -> None:
        self._replace(self.backup)

    def close(self) -> None:
        pass

    def _replace(self, fields: dict[str, object]) -> None:
        for name, value in fields.items():
            if name != "grown":
                setattr(self.store, name, value)


class RedisWorld:
    def __init__(self, url: str, run: str) -> None:
        self.url = url
        self.keys = Keys(run)
        self.server = Connection(url)
        self.backup: list[tuple[bytes, bytes]] = []
        self.logs = [RedisLog.create(url, plan(run), at=1)]
        self.payloads: list[RedisBlobs] = []

    def client(self) -> NumberedLog:
        self.logs.append(RedisLog.open(self.url, self.keys.run))
        return self.logs[-1]

    def blobs(self) -> Blobs:
        self.payloads.append(RedisBlobs(self.url, self.keys.run))
        return self.payloads[-1]

    def trim(self, up_to: int) -> None:
        trimming = Trimming(self.url, self.keys.run, self.logs[-1].log_id)
        trimming.trim(up_to)
        trimming.close()

    def recreate(self) -> None:
        self.delete()
        self.logs.append(RedisLog.create(self.url, plan(self.keys.run), at=2))

    def delete(self) -> None:
        """Somebody deletes the log."""
        self.server.call("DEL", *self._existing())

    def save(self) -> None:
        self.backup = [(key, cast(bytes, self.server.call("DUMP", key))) for key in self._existing()]

    def restore(self) -> None:
        self.delete()
        for key, value in self.backup:
            self.server.call("RESTORE", key, 0, value)

    def close(self) -> None:
        for log in self.logs:
            log.close()
        for payloads in self.payloads:
            payloads.close()
        self.server.close()

    def _existing(self) -> list[bytes]:
        return cast("list[bytes]", self.server.call("KEYS", f"{{swingshift:{self.keys.run}}}:*"))
