"""Reading and appending as `bus.redis_log` and `bus.redis_blobs` do it, command for command, without the work of a client.

What a client computes from what it has got (chains, digests, events) is nothing to the server, and here a thousand share one processor.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from benchmarks.scale_load import RUN
from benchmarks.scale_wire import Command, Loop, Wire
from bus.alive import RENEW, RENEWALS_PER_TTL, TTL_S
from bus.entry import Draft, Producer
from bus.events import Event
from bus.keys import Keys
from bus.log import WHATEVER
from bus.redis_blobs import storing
from bus.redis_log import APPEND
from bus.stream import FIELDS, Client, Mode
from bus.wire import Reply
from services.shell import READ_LIMIT

KEYS = Keys(RUN)
Item: TypeAlias = tuple[int, bytes, bytes]
"""(position, kind, body)"""
BODY = 1 + 2 * FIELDS.index(b"body")
"""Where the fields of an item have it."""


class Speaker:
    """Appends as one service, on a connection of its own, one append at a time."""

    def __init__(self, loop: Loop, port: int, log_id: str, source: str) -> None:
        self.wire = Wire(loop, port)
        self.source = source
        self.epoch = 0
        self.top = 0
        """The highest position that this client knows."""
        self._client = Client(KEYS, log_id, uuid.uuid4().hex)
        self._counter = 0

    async def attach(self, first_word: Event) -> int:
        """Its position."""
        reply = await self.wire.ask(*self._append("attach", WHATEVER, [(first_word, 0)]))
        position, self.epoch = self._appended(reply, 1)
        return position

    async def say(self, facts: Sequence[tuple[Event, int]], payloads: Mapping[str, bytes] | None = None) -> int:
        """Events, each with its cause, behind payloads as they lie on the server under their keys; position of the last one."""
        command = self._append("append", self.epoch, facts)
        if payloads is None:
            return self._appended(await self.wire.ask(*command), len(facts))[0]
        replies = await self.wire.transact(*storing(KEYS.size, payloads), command)
        return self._appended(cast("list[Reply]", replies)[-1], len(facts))[0]

    def _append(self, mode: Mode, epoch: int, facts: Sequence[tuple[Event, int]]) -> Command:
        now = time.monotonic_ns()
        drafts = [Draft(event, False, cause, now) for event, cause in facts]
        self._counter += 1
        keys, arguments = self._client.append(mode, self.top, Producer(self.source, epoch), drafts, self._counter)
        return ("EVALSHA", APPEND.digest, len(keys), *keys, *arguments)

    def _appended(self, reply: Reply, count: int) -> tuple[int, int]:
        """Position of the last one, and the epoch."""
        if not isinstance(reply, list) or reply[0] != b"ok":
            raise SystemExit(f"{self.source}: the append script answers {reply!r}")
        first, epoch = cast("list[int]", reply[1:])
        self.top = max(self.top, first + count - 1)
        return first + count - 1, epoch


def reading(key: str, after: int, block_ms: int) -> Command:
    """The command that waits for what comes after a position."""
    return ("XREAD", "COUNT", READ_LIMIT, "BLOCK", block_ms, "STREAMS", key, f"{after}-0")


def place(position: int) -> Sequence[Command]:
    """The commands that tell a reader of the log whether it is still the one that it knows."""
    end = ("HMGET", KEYS.meta, "log", "position")
    return (end, ("XRANGE", KEYS.log, f"{position}-0", f"{position}-0")) if position else (end,)


def items_of(reply: Reply) -> list[Item]:
    """What was read of the one stream that was asked for."""
    if reply is None:
        return []
    items = cast("list[tuple[bytes, list[tuple[bytes, list[bytes]]]]]", reply)[0][1]
    return [(int(number[:-2]), fields[1], fields[BODY]) for number, fields in items]


async def live(loop: Loop, wire: Wire, speaker: Speaker, share: float = 0.0) -> None:
    """Its signs of life, and a look at the controller's. `share` of a pause passes before the first."""
    key, pause_s = KEYS.alive(speaker.source), TTL_S / RENEWALS_PER_TTL
    await loop.sleep(share * pause_s)
    while True:
        renewing = ("EVALSHA", RENEW.digest, 1, key, speaker.epoch, round(TTL_S * 1000))
        await wire.exchange(renewing, ("MGET", KEYS.alive("controller")))
        await loop.sleep(pause_s)
