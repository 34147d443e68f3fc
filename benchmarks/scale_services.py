"""The services beside the replicas, as far as the server notices: they read the log, and append and store what follows.

    rollouter    finished answers ─▶ the next requests to the same replicas; a sample's last answer ─▶ all are read, the sample is stored
    trainer      ready samples ─▶ read for a step; steps ─▶ StepDone, and once a cycle weights and a checkpoint
    reader       controller and policy: they decide next to nothing

They ask for what `services.shell` and the performers ask for, with the same connections and in the same rhythm.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import msgpack

from benchmarks.scale_load import Load, Payloads, stored
from benchmarks.scale_speaker import KEYS, Item, Speaker, items_of, live, place, reading
from benchmarks.scale_wire import Command, Loop, Routine, Wire, begin
from bus.blobs import TOGETHER_BYTES, blob_ref, together
from bus.events import (
    BatchFormed,
    BlobRef,
    CheckpointSaved,
    Event,
    GenerationFinished,
    GenerationRequested,
    PolicyAttached,
    ReplicaAdded,
    RunEnded,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    ServiceStopped,
    StepDone,
    WaitSamples,
    WeightsPublished,
    WeightUpdateRequested,
)
from bus.host import MAX_TOGETHER
from bus.redis_blobs import storing
from bus.trimming import REPORT, TELL_EVERY_S
from services.payloads import prompt_blob, sample_blob
from services.shell import BLOCK_MS, gather_s

URI = "file:///weights"
ADDED, FINISHED, PUBLISHED, READY, ENDED = (
    event.kind.encode() for event in (ReplicaAdded, GenerationFinished, WeightsPublished, SampleReady, RunEnded)
)

Fact: TypeAlias = tuple[Event, int]
"""An event and its cause."""
Scored: TypeAlias = tuple[int, list[BlobRef], int]
"""A sample, its answers, and the position of the last one."""


class Service:
    """One that decides next to nothing: it reads all, and says how far it is."""

    def __init__(self, loop: Loop, port: int, log_id: str, source: str) -> None:
        self.speaker = Speaker(loop, port, log_id, source)
        self.position = 0
        """Taken up to here."""
        self.over = self.ended = self._busy = False
        self._loop = loop
        self._told = 0
        self._jobs: deque[Callable[[], Routine]] = deque()
        """Of its main thread."""
        self._reader, self._progress, self._alive = (Wire(loop, port) for _ in range(3))

    def start(self) -> None:
        begin(self._begin())

    async def began(self) -> None:
        """Has attached."""

    async def take(self, items: Sequence[Item]) -> None:
        """What was read."""

    def durable(self) -> int:
        """Up to where it needs no entry any more."""
        return self.position

    async def _begin(self) -> None:
        policy = PolicyAttached(name="default", params={}, mode="active", code="")
        await self.speaker.attach(policy if self.speaker.source == "policy" else ServiceStarted(code=""))
        await self.began()
        for routine in (self._read(), self._tell(), live(self._loop, self._alive, self.speaker)):
            begin(routine)

    async def _read(self) -> None:
        position = 0
        await self._reader.exchange(*place(position))
        while not self.over:
            items = items_of(await self._reader.ask(*reading(KEYS.log, position, BLOCK_MS)))
            if not items:
                await self._reader.exchange(*place(position))
                continue
            position = items[-1][0]
            self.over = any(kind == ENDED for _, kind, _ in items)
            self.do(partial(self._take, items))
            await self._loop.sleep(gather_s(len(items)))
        self.do(self._leave)

    async def _take(self, items: Sequence[Item]) -> None:
        await self.take(items)
        self.position = items[-1][0]
        self.speaker.top = max(self.speaker.top, self.position)

    async def _leave(self) -> None:
        await self.speaker.say([(ServiceStopped(reason="the run has ended"), self.position)])
        self.ended = True

    def do(self, job: Callable[[], Routine]) -> None:
        """In its main thread, after what is to be done already."""
        self._jobs.append(job)
        if not self._busy:
            begin(self._serve())

    async def _serve(self) -> None:
        self._busy = True
        while self._jobs:
            await self._jobs.popleft()()
        self._busy = False

    async def _tell(self) -> None:
        while not self.over:
            if self._told != (position := self.durable()):
                self._told = position
                await self._progress.ask("EVALSHA", REPORT.digest, 1, KEYS.positions, self.speaker.source, position)
            await self._loop.sleep(TELL_EVERY_S)


class Rollouter(Service):
    """Keeps every slot of every replica busy."""

    def __init__(self, loop: Loop, port: int, log_id: str, load: Load) -> None:
        super().__init__(loop, port, log_id, "rollouter")
        self._load = load
        payloads = Payloads.of(load)
        self._prompts = [stored(prompt) for prompt in payloads.prompts]
        self._samples = [(stored(sample), blob_ref("", sample)) for sample in payloads.samples]
        self._blobs, self._scored = Wire(loop, port), Wire(loop, port)
        self._added: list[str] = []
        self._version = 0
        self._answers = ((sample, answer) for sample in itertools.count() for answer in range(load.answers))
        self._left: dict[int, list[BlobRef]] = {}
        """Sample -> its answers that are there, as long as some are not."""
        self._scoring: list[Scored] = []

    async def take(self, items: Sequence[Item]) -> None:
        decisions: list[Fact] = []
        whole: list[Scored] = []
        for position, kind, body in items:
            if kind == FINISHED:
                event = msgpack.unpackb(body)
                decisions += await self._requests(event["replica"], position)
                sample = int(event["request"].partition(".")[0])
                blobs = self._left[sample]
                blobs.append(BlobRef(**event["blob"]))
                if len(blobs) == self._load.answers:
                    whole.append((sample, self._left.pop(sample), position))
            elif kind == PUBLISHED:
                event = msgpack.unpackb(body)
                self._version = event["version"]
                decisions += [(update(name, event), position) for name in self._added]
            elif kind == ADDED:
                self._added.append(msgpack.unpackb(body)["replica"])
                if len(self._added) == self._load.replicas:
                    await self._fill(position)
        await self._decide(decisions)
        for scored in whole:
            await read(self._blobs, scored[1])
        self._score(whole)

    async def _decide(self, decisions: Sequence[Fact]) -> None:
        """In as many appends as `bus.host` makes of them."""
        for first in range(0, len(decisions), MAX_TOGETHER):
            await self.speaker.say(decisions[first : first + MAX_TOGETHER])

    async def _fill(self, cause: int) -> None:
        for _ in range(self._load.slots):
            decisions = [fact for name in self._added for fact in await self._requests(name, cause)]
            await self._decide(decisions)

    async def _requests(self, replica: str, cause: int) -> list[Fact]:
        """The next request to a replica, behind the start of its sample."""
        decisions: list[Fact] = []
        sample, answer = next(self._answers)
        if answer == 0:
            await store(self._blobs, prompt_blob(sample), self._prompts[sample % len(self._prompts)])
            self._left[sample] = []
            decisions.append((SampleStarted(sample=sample, version=self._version), cause))
        request = GenerationRequested(
            request=f"{sample}.{answer}", attempt=1, replica=replica, epoch=1, swing=0, sample=sample, answer=answer,
            max_new_tokens=self._load.longest,
        )  # fmt: skip
        return [*decisions, (request, cause)]

    def _score(self, whole: Sequence[Scored]) -> None:
        """Rewards take no time here; a thread of its own stores the samples that have them."""
        idle = not self._scoring
        self._scoring += whole
        if idle and whole:
            begin(self._collect())

    async def _collect(self) -> None:
        while self._scoring:
            facts: list[Fact] = [(await self._ready(sample), cause) for sample, _, cause in tuple(self._scoring)]
            del self._scoring[: len(facts)]
            self.do(partial(self._append, facts))

    async def _append(self, facts: Sequence[Fact]) -> None:
        await self.speaker.say(facts)

    async def _ready(self, sample: int) -> SampleReady:
        data, ref = self._samples[sample % len(self._samples)]
        name = sample_blob(sample)
        await store(self._scored, name, data)
        return SampleReady(
            sample=sample, num_tokens=round(self._load.mean_tokens) * self._load.answers, oldest_version=max(0, self._version - 1),
            newest_version=self._version, mean_reward=0.5, blob=BlobRef(name=name, num_bytes=ref.num_bytes, digest=ref.digest),
        )  # fmt: skip


class Trainer(Service):
    """Trains as soon as there are samples for a step; training takes no time."""

    def __init__(self, loop: Loop, port: int, log_id: str, load: Load) -> None:
        super().__init__(loop, port, log_id, "trainer")
        self._load = load
        self._blobs = Wire(loop, port)
        self._ready: list[tuple[int, BlobRef]] = []
        self._step = self._version = 0
        self._durable = 0

    def durable(self) -> int:
        return self._durable

    async def began(self) -> None:
        await self._publish()

    async def take(self, items: Sequence[Item]) -> None:
        for position, kind, body in items:
            if kind == READY:
                event = msgpack.unpackb(body)
                self._ready.append((event["sample"], BlobRef(**event["blob"])))
                if len(self._ready) == self._load.step_samples:
                    ready, self._ready = self._ready, []
                    await self._train(ready, position)

    async def _train(self, ready: Sequence[tuple[int, BlobRef]], cause: int) -> None:
        self._step += 1
        batch = BatchFormed(step=self._step, samples=tuple(sample for sample, _ in ready), micro_batches=(tuple(range(len(ready))),))
        position = await self.speaker.say([(batch, cause)])
        await read(self._blobs, [ref for _, ref in ready])
        is_boundary = self._step % self._load.cycle_steps == 0
        done = StepDone(
            step=self._step, version=self._version, is_boundary=is_boundary, num_samples=len(ready), seconds={"train": 1.0},
            metrics={"loss": 0.5},
        )  # fmt: skip
        waits = WaitSamples(step=self._step + 1, need=self._load.step_samples, have=0)
        position = await self.speaker.say([(done, position), (waits, position)])
        if is_boundary:
            self._version += 1
            await self._publish()
            saved = CheckpointSaved(
                step=self._step, version=self._version, position=position, uri=f"file:///checkpoint-{self._step}", digest="", seconds=0.0
            )
            await self.speaker.say([(saved, position)])
            self._durable = position

    async def _publish(self) -> None:
        published = WeightsPublished(
            version=self._version, revision=0, transport="file", uri=URI, digest="0" * 32, num_bytes=1, seconds=0.0
        )
        await self.speaker.say([(published, self.position)])


def update(replica: str, published: dict[str, str | int]) -> WeightUpdateRequested:
    version, uri, digest = (published[name] for name in ("version", "uri", "digest"))
    return WeightUpdateRequested(replica=replica, epoch=1, version=int(version), revision=0, uri=str(uri), digest=str(digest), mode="keep")


async def store(wire: Wire, name: str, data: bytes) -> None:
    await wire.transact(*storing(KEYS.size, {KEYS.blob(name): data}))


async def read(wire: Wire, refs: Sequence[BlobRef]) -> None:
    """Several in a call, as `bus.blobs.get_blobs` does it."""
    for some in together(refs, TOGETHER_BYTES):
        names = [KEYS.blob(ref.name) for ref in some]
        command: Command = ("MGET", *names)
        if None in cast("list[bytes | None]", await wire.ask(*command)):
            raise SystemExit(f"a payload of {names} is not there")
