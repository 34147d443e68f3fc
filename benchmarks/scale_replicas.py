"""Replicas that compute nothing: what `services.replica` asks of the server, command for command, with the connections that it has.

inbox ─▶ GenerationRequested: its prompt is read ─▶ seconds of generation pass ─▶ the answer is stored, GenerationFinished behind it
     └─▶ WeightUpdateRequested ─▶ WeightsApplied

All in one process, for a thousand real ones would need a machine each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TypeAlias, cast

import msgpack

from benchmarks.scale_load import Load, Payloads, stored
from benchmarks.scale_speaker import KEYS, Item, Speaker, items_of, live, reading
from benchmarks.scale_wire import Loop, Wire, begin
from bus.blobs import blob_ref
from bus.events import (
    BlobRef,
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaAdded,
    ServiceStarted,
    ServiceStopped,
    WeightsApplied,
    WeightUpdateRequested,
)
from bus.wire import Reply, pack
from services.payloads import answer_blob, prompt_blob
from services.shell import BLOCK_MS, GATHER_S

IDLE_CONNECTIONS = 1
"""The one for appends that comes with reading the inbox."""
REQUESTED, UPDATE = GenerationRequested.kind.encode(), WeightUpdateRequested.kind.encode()


class Answer:
    """One that is generated, or was."""

    __slots__ = ("attempt", "cause", "data", "ref", "request", "tokens")

    def __init__(self, request: str, attempt: int, cause: int, content: tuple[int, bytes, BlobRef]) -> None:
        self.request = request
        self.attempt = attempt
        self.cause = cause
        self.tokens, self.data, self.ref = content


Mail: TypeAlias = list[Item] | Answer | Event
"""What came into the inbox; an answer that is whole; something to be said."""


class World:
    """What the replicas of a process share."""

    def __init__(self, load: Load, port: int, log_id: str, seed: int) -> None:
        self.load = load
        self.port = port
        self.log_id = log_id
        self.loop = Loop()
        self.random = Random(seed)
        payloads = Payloads.of(load)
        self.answers = [(tokens, stored(data), blob_ref("", data)) for tokens, data in payloads.answers]
        self.ended = 0
        """Replicas that have heard that the run is over."""

    def seconds(self, tokens: int) -> float:
        return tokens / self.load.tokens_per_s

    def rest(self) -> float:
        """Seconds that an answer still takes which somebody finds under way: longer ones are found more often."""
        low, high = self.load.shortest**2, self.load.longest**2
        return self.random.random() * self.seconds(round((low + self.random.random() * (high - low)) ** 0.5))


class Replica:
    """One of them."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._speaker = Speaker(world.loop, world.port, world.log_id, f"replica:{name}")
        self._position = 0
        self._taken = 0
        self._mail: deque[Mail] = deque()
        self._busy = False
        self._inbox, self._blobs, self._alive = (Wire(world.loop, world.port) for _ in range(3))
        self._idle = [Wire(world.loop, world.port) for _ in range(IDLE_CONNECTIONS)]
        self._over = False

    def start(self) -> None:
        """Attaches, then is there."""
        begin(self._begin())

    async def _begin(self) -> None:
        slots = self._world.load.slots
        self._position = await self._speaker.attach(ServiceStarted(code="", host="simulated", pid=1, role="standalone"))
        self._post(ReplicaAdded(replica=self._name, role="standalone", slots=slots, seconds=0.0))
        begin(self._follow_inbox())
        begin(live(self._world.loop, self._alive, self._speaker, self._world.random.random()))

    # --- its main thread: one thing at a time ------------------------------------------------------------------------------------

    def _post(self, mail: Mail) -> None:
        self._mail.append(mail)
        if not self._busy:
            begin(self._serve())

    async def _serve(self) -> None:
        self._busy = True
        while self._mail:
            match self._mail.popleft():
                case Answer() as answer:
                    await self._finish(answer)
                case list(items):
                    await self._take(items)
                case event:
                    await self._speaker.say([(event, 0)])
                    self._world.ended += isinstance(event, ServiceStopped)
        self._busy = False

    async def _take(self, items: Sequence[Item]) -> None:
        requests = [(position, msgpack.unpackb(body)) for position, kind, body in items if kind == REQUESTED]
        if requests:
            names = list(dict.fromkeys(KEYS.blob(prompt_blob(request["sample"])) for _, request in requests))
            reply = await self._blobs.ask(*(("GET", names[0]) if len(requests) == 1 else ("MGET", *names)))
            if reply is None or (isinstance(reply, list) and None in reply):
                raise SystemExit(f"{self._name}: a prompt of {names} is not there")
        for position, request in requests:
            self._submit(request["request"], request["attempt"], position)
        for position, kind, body in items:
            if kind == UPDATE:
                version = msgpack.unpackb(body)["version"]
                fact = WeightsApplied(replica=self._name, version=version, revision=0, seconds=0.0, transport="file", num_bytes=1)
                await self._speaker.say([(fact, position)])

    def _submit(self, request: str, attempt: int, position: int) -> None:
        world = self._world
        self._taken += 1
        answer = Answer(request, attempt, position, world.random.choice(world.answers))
        # So that the load is what it is later from the first second on.
        seconds = world.rest() if self._taken <= world.load.slots else world.seconds(answer.tokens)
        world.loop.after(seconds, lambda: self._post(answer))

    async def _finish(self, answer: Answer) -> None:
        name, ref, tokens = answer_blob(answer.request, answer.attempt), answer.ref, answer.tokens
        fact = GenerationFinished(
            request=answer.request, attempt=answer.attempt, replica=self._name, outcome="stop", num_tokens=tokens,
            version_spans=((0, tokens),), blob=BlobRef(name=name, num_bytes=ref.num_bytes, digest=ref.digest),
        )  # fmt: skip
        await self._speaker.say([(fact, answer.cause)], {KEYS.blob(name): answer.data})

    # --- its other threads -------------------------------------------------------------------------------------------------------

    async def _follow_inbox(self) -> None:
        inbox, facts = KEYS.inbox(self._name), pack(("HMGET", KEYS.meta, "log", "position", f"trimmed:{self._name}", "ended"))
        last_read = 0
        while not self._over:
            entry = [("XRANGE", KEYS.log, f"{last_read}-0", f"{last_read}-0")] if last_read else []
            asked = b"".join((pack(reading(inbox, self._position, BLOCK_MS)), facts, *map(pack, entry)))
            replies = await self._inbox.send(asked, 2 + len(entry), whole=True)
            reply, found, *_ = cast("list[Reply]", replies)
            items = items_of(reply)
            if items:
                self._position = last_read = items[-1][0]
                self._speaker.top = max(self._speaker.top, last_read)
                self._post(items)
            if cast("list[bytes | None]", found)[3] is not None:
                self._over = True
                self._post(ServiceStopped(reason="the run has ended"))
            elif items:
                await self._world.loop.sleep(GATHER_S)
