"""Replicas that compute nothing: what `services.replica` asks of the server, command for command, with the connections that it has.

inbox ─▶ GenerationRequested: its prompt is read ─▶ seconds of generation pass ─▶ the answer is stored ─▶ GenerationFinished
     └─▶ WeightUpdateRequested ─▶ WeightsApplied

Some hundred of them in a process. `python -m benchmarks.scale_replicas LOAD PORT LOG_ID FIRST COUNT`
"""

from __future__ import annotations

import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import cast

from benchmarks.scale_load import RUN, Load, Payloads, load_of, stored
from benchmarks.scale_wire import Loop, Wire
from bus.alive import RENEW, RENEWALS_PER_TTL, TTL_S
from bus.blobs import blob_ref
from bus.connection import Reply
from bus.entry import Draft, Entry, Producer
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
from bus.keys import Keys
from bus.log import WHATEVER
from bus.redis_blobs import storing
from bus.redis_log import APPEND
from bus.stream import Client, Mode, entry_of
from services.payloads import answer_blob, prompt_blob
from services.shell import BLOCK_MS, GATHER_S, READ_LIMIT

IDLE_CONNECTIONS = 1
"""The one for appends that comes with reading the inbox."""
Done = Callable[[], None]
Job = Callable[[Done], None]


class World:
    """What the replicas of a process share."""

    def __init__(self, load: Load, port: int, log_id: str, seed: int) -> None:
        self.load = load
        self.port = port
        self.log_id = log_id
        self.keys = Keys(RUN)
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
        self._keys = world.keys
        self._client = Client(world.keys, world.log_id, uuid.uuid4().hex)
        self._producer = Producer(f"replica:{name}", WHATEVER)
        self._counter = 0
        self._top = 0
        self._position = 0
        self._taken = 0
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._inbox, self._calls, self._blobs, self._alive = (Wire(world.loop, world.port) for _ in range(4))
        self._idle = [Wire(world.loop, world.port) for _ in range(IDLE_CONNECTIONS)]
        self._over = False

    def start(self) -> None:
        """Attaches, then is there."""
        first_word = ServiceStarted(code="", host="simulated", pid=1, role="standalone")
        self._append("attach", [first_word], 0, self._begin)

    def _begin(self, reply: Reply) -> None:
        _, position, epoch = cast("list[int]", reply)
        self._position = position
        self._producer = Producer(self._producer.source, epoch)
        self._say(ReplicaAdded(replica=self._name, role="standalone", slots=self._world.load.slots, seconds=0.0), position)
        loop, random = self._world.loop, self._world.random
        loop.after(0.0, self._read_inbox)
        loop.after(random.random() * TTL_S / RENEWALS_PER_TTL, self._renew)

    # --- its main thread: one thing at a time ------------------------------------------------------------------------------------

    def _do(self, job: Job) -> None:
        self._jobs.append(job)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._jobs)
        if self._busy:
            self._jobs.popleft()(self._next)

    def _say(self, event: Event, cause: int) -> None:
        self._do(lambda done: self._append("append", [event], cause, lambda reply: done()))

    def _append(self, mode: Mode, events: Sequence[Event], cause: int, then: Callable[[Reply], None]) -> None:
        drafts = [Draft(event, False, cause, time.monotonic_ns()) for event in events]
        self._counter += 1
        keys, arguments = self._client.append(mode, self._top, self._producer, drafts, self._counter)

        def take(reply: Reply) -> None:
            if not isinstance(reply, list) or reply[0] != b"ok":
                raise SystemExit(f"{self._name}: the append script answers {reply!r}")
            self._top = max(self._top, cast(int, reply[1]) + len(drafts) - 1)
            then(reply)

        self._calls.run(APPEND, keys, arguments, take)

    def _take(self, entries: Sequence[Entry]) -> None:
        requests = [(entry.event, entry.position) for entry in entries if isinstance(entry.event, GenerationRequested)]
        if requests:
            self._do(lambda done: self._generate(requests, done))
        for entry in entries:
            if isinstance(entry.event, WeightUpdateRequested):
                version = entry.event.version
                self._say(
                    WeightsApplied(replica=self._name, version=version, revision=0, seconds=0.0, transport="file", num_bytes=1),
                    entry.position,
                )

    def _generate(self, requests: Sequence[tuple[GenerationRequested, int]], done: Done) -> None:
        names = list(dict.fromkeys(self._keys.blob(prompt_blob(event.sample)) for event, _ in requests))

        def begin(reply: Reply) -> None:
            if reply is None or (isinstance(reply, list) and None in reply):
                raise SystemExit(f"{self._name}: a prompt of {names} is not there")
            for event, position in requests:
                self._submit(event, position)
            done()

        self._blobs.ask(("GET", names[0]) if len(requests) == 1 else ("MGET", *names), begin)

    def _submit(self, event: GenerationRequested, position: int) -> None:
        world = self._world
        self._taken += 1
        tokens, data, ref = world.random.choice(world.answers)
        # So that the load is what it is later from the first second on.
        seconds = world.rest() if self._taken <= world.load.slots else world.seconds(tokens)
        world.loop.after(seconds, lambda: self._do(lambda done: self._finish(event, position, tokens, data, ref, done)))

    def _finish(self, event: GenerationRequested, position: int, tokens: int, data: bytes, ref: BlobRef, done: Done) -> None:
        name = answer_blob(event.request, event.attempt)
        fact = GenerationFinished(
            request=event.request, attempt=event.attempt, replica=self._name, outcome="stop", num_tokens=tokens,
            version_spans=((0, tokens),), blob=BlobRef(name=name, num_bytes=ref.num_bytes, digest=ref.digest),
        )  # fmt: skip
        self._blobs.transact(
            storing(self._keys.size, {self._keys.blob(name): data}),
            lambda reply: self._append("append", [fact], position, lambda reply: done()),
        )

    # --- its other threads -------------------------------------------------------------------------------------------------------

    def _read_inbox(self) -> None:
        if not self._over:
            self._inbox.ask(
                ("XREAD", "COUNT", READ_LIMIT, "BLOCK", BLOCK_MS, "STREAMS", self._keys.inbox(self._name), f"{self._position}-0"),
                self._open_inbox,
            )

    def _open_inbox(self, reply: Reply) -> None:
        if reply is None:
            self._check_place()
        items = cast("list[tuple[bytes, list[Reply]]]", reply)[0][1] if reply is not None else []
        entries = [entry_of(RUN, item) for item in items]
        end = ("HMGET", self._keys.meta, "log", "position", f"trimmed:{self._name}", "ended")

        def take(reply: Reply) -> None:
            if cast("list[bytes | None]", reply)[3] is not None:
                self._leave()
            if entries:
                self._position = entries[-1].position
                self._top = max(self._top, self._position)
                self._take(entries)
            self._world.loop.after(GATHER_S if entries else 0.0, self._read_inbox)

        self._inbox.ask(end, take)

    def _check_place(self) -> None:
        self._inbox.ask(("HMGET", self._keys.meta, "log", "position"), lambda reply: None)
        self._inbox.ask(("XRANGE", self._keys.log, f"{self._position}-0", f"{self._position}-0"), lambda reply: None)

    def _leave(self) -> None:
        self._over = True
        self._do(lambda done: self._append("append", [ServiceStopped(reason="the run has ended")], 0, self._stop))

    def _stop(self, reply: Reply) -> None:
        self._world.ended += 1

    def _renew(self) -> None:
        epoch = self._producer.epoch
        self._alive.run(RENEW, [self._keys.alive(self._producer.source)], [epoch, round(TTL_S * 1000)], lambda reply: None)
        self._alive.ask(("MGET", self._keys.alive("controller")), lambda reply: None)
        self._world.loop.after(TTL_S / RENEWALS_PER_TTL, self._renew)


def main(arguments: Sequence[str]) -> None:
    load, port, log_id, first, count = load_of(arguments[0]), int(arguments[1]), arguments[2], int(arguments[3]), int(arguments[4])
    world = World(load, port, log_id, seed=first)
    replicas = [Replica(world, name) for name in load.names[first : first + count]]
    for number, replica in enumerate(replicas):
        world.loop.after(0.001 * number, replica.start)
    say_at = time.monotonic() + 1.0

    def goes_on() -> bool:
        nonlocal say_at
        if time.monotonic() >= say_at:
            say_at = time.monotonic() + 1.0
            print(f"{time.monotonic():.3f} {world.loop.lag_s:.4f}", flush=True)
            world.loop.lag_s = 0.0
        return world.ended < count

    world.loop.run(goes_on)


if __name__ == "__main__":
    main(sys.argv[1:])
