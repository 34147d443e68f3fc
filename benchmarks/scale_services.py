"""The services beside the replicas, as far as the server notices: they read the log, and append and store what follows.

    rollouter    finished answers ─▶ the next requests to the same replicas; a sample's last answer ─▶ all are read, the sample is stored
    trainer      ready samples ─▶ read for a step; steps ─▶ StepDone, and once a cycle weights and a checkpoint
    reader       controller and policy: they decide next to nothing
    probe        appends every few milliseconds              watcher: when does what was appended get read?

They use the clients of `bus` as `services.shell` does. `python -m benchmarks.scale_services WHO LOAD URL [FILE]`
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.scale_load import RUN, Load, Payloads, load_of
from bus.blobs import put_blob
from bus.entry import Draft, Producer
from bus.events import (
    BatchFormed,
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
from bus.recording import Row
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.trimming import Progress
from services.payloads import answer_blob, prompt_blob, sample_blob
from services.shell import BLOCK_MS, GATHER_S, READ_LIMIT

PROBE = "operator"
PROBE_S = 0.01
OF_PROBE, OF_ANSWER = 1.0, 2.0
FIRST_REQUESTS = 256
"""In one append, while the replicas are filled."""
URI = "file:///weights"


class Service:
    """One of them, attached: reads in portions and appends."""

    def __init__(self, source: str, url: str) -> None:
        self.source = source
        self.log = RedisLog.open(url, RUN)
        self.reader = RedisLog.open(url, RUN)
        self.progress = Progress(url, RUN, source)
        word = PolicyAttached(name="default", params={}, mode="active", code="") if source == "policy" else ServiceStarted(code="")
        self.producer = self.log.attach(source, draft(word, 0)).producer
        self.position = 0
        self.ended = False

    def say(self, events: Sequence[Event], cause: int) -> int:
        """Position of the last one."""
        return self.log.append(self.producer, [draft(event, cause) for event in events]) + len(events) - 1

    def rows(self) -> list[Row]:
        """The next ones; they gather meanwhile, as in every service."""
        rows = self.reader.read_rows(self.position, READ_LIMIT, BLOCK_MS)
        if rows:
            self.position = rows[-1].position
            self.ended = self.ended or any(row.kind == RunEnded.kind for row in rows)
            time.sleep(GATHER_S)
        return rows

    def follow(self, take: Callable[[Row], None], durable: Callable[[], int]) -> None:
        """Until the run has ended."""
        while not self.ended:
            for row in self.rows():
                take(row)
            self.progress.tell(durable())
        self.say([ServiceStopped(reason="the run has ended")], self.position)


def draft(event: Event, cause: int) -> Draft:
    return Draft(event, derived=False, cause=cause, at=time.monotonic_ns())


class Rollouter:
    """Keeps every slot of every replica busy."""

    def __init__(self, load: Load, url: str) -> None:
        self._load = load
        self._payloads = Payloads.of(load)
        self._service = Service("rollouter", url)
        self._blobs = RedisBlobs(url, RUN)
        self._added: list[str] = []
        self._version = 0
        self._answers = ((sample, answer) for sample in itertools.count() for answer in range(load.answers))
        self._left: dict[int, int] = {}
        """Sample -> answers that are not there yet."""
        self._events: list[Event] = []

    def run(self) -> None:
        service = self._service
        while not service.ended:
            for row in service.rows():
                self._take(row)
            if self._events:
                service.say(self._events, service.position)
                self._events = []
            service.progress.tell(service.position)
        service.say([ServiceStopped(reason="the run has ended")], service.position)

    def _take(self, row: Row) -> None:
        # The live rollouter decodes every entry.
        event = row.entry().event
        match event:
            case ReplicaAdded():
                self._added.append(event.replica)
                if len(self._added) == self._load.replicas:
                    self._fill()
            case GenerationFinished():
                self._finish(event)
            case WeightsPublished():
                self._version = event.version
                for name in self._added:
                    self._events.append(
                        WeightUpdateRequested(
                            replica=name, epoch=1, version=event.version, revision=0, uri=event.uri, digest=event.digest, mode="keep"
                        )
                    )
            case _:
                pass

    def _fill(self) -> None:
        for _ in range(self._load.slots):
            for name in self._added:
                self._request(name)
                if len(self._events) >= FIRST_REQUESTS:
                    self._service.say(self._events, self._service.position)
                    self._events = []

    def _request(self, replica: str) -> None:
        sample, answer = next(self._answers)
        if answer == 0:
            self._blobs.put(prompt_blob(sample), self._payloads.prompts[sample % len(self._payloads.prompts)])
            self._left[sample] = self._load.answers
            self._events.append(SampleStarted(sample=sample, version=self._version))
        self._events.append(
            GenerationRequested(
                request=f"{sample}.{answer}", attempt=1, replica=replica, epoch=1, swing=0, sample=sample, answer=answer,
                max_new_tokens=self._load.longest,
            )
        )  # fmt: skip

    def _finish(self, event: GenerationFinished) -> None:
        self._request(event.replica)
        sample = int(event.request.partition(".")[0])
        self._left[sample] -= 1
        if self._left[sample]:
            return
        del self._left[sample]
        for answer in range(self._load.answers):
            self._blobs.get(answer_blob(f"{sample}.{answer}", 1))
        ref = put_blob(self._blobs, sample_blob(sample), self._payloads.samples[sample % len(self._payloads.samples)])
        self._events.append(
            SampleReady(
                sample=sample, num_tokens=round(self._load.mean_tokens) * self._load.answers, oldest_version=max(0, self._version - 1),
                newest_version=self._version, mean_reward=0.5, blob=ref,
            )
        )  # fmt: skip


class Trainer:
    """Trains as soon as there are samples for a step; training takes no time."""

    def __init__(self, load: Load, url: str) -> None:
        self._load = load
        self._service = Service("trainer", url)
        self._blobs = RedisBlobs(url, RUN)
        self._ready: list[int] = []
        self._step = self._version = 0
        self._durable = 0
        self._publish()

    def run(self) -> None:
        self._service.follow(self._take, lambda: self._durable)

    def _take(self, row: Row) -> None:
        if row.kind != SampleReady.kind:
            return
        event = row.entry().event
        assert isinstance(event, SampleReady)
        self._ready.append(event.sample)
        if len(self._ready) == self._load.step_samples:
            self._train(row.position)
            self._ready = []

    def _train(self, cause: int) -> None:
        self._step += 1
        batch = BatchFormed(step=self._step, samples=tuple(self._ready), micro_batches=(tuple(range(len(self._ready))),))
        position = self._service.say([batch], cause)
        for sample in self._ready:
            self._blobs.get(sample_blob(sample))
        is_boundary = self._step % self._load.cycle_steps == 0
        done = StepDone(
            step=self._step, version=self._version, is_boundary=is_boundary, num_samples=len(self._ready), seconds={"train": 1.0},
            metrics={"loss": 0.5},
        )  # fmt: skip
        position = self._service.say([done, WaitSamples(step=self._step + 1, need=self._load.step_samples, have=0)], position)
        if is_boundary:
            self._version += 1
            self._publish()
            saved = CheckpointSaved(step=self._step, version=self._version, position=position, uri=URI, digest="", seconds=0.0)
            self._service.say([saved], position)
            self._durable = position

    def _publish(self) -> None:
        published = WeightsPublished(
            version=self._version, revision=0, transport="file", uri=URI, digest="0" * 32, num_bytes=1, seconds=0.0
        )
        self._service.say([published], self._service.position)


def follow(source: str, url: str) -> None:
    """Is a service that decides next to nothing."""
    service = Service(source, url)
    service.follow(lambda row: None, lambda: service.position)


def first() -> None:
    """Goes before everybody else who wants the processor; where that may not be, it waits as they do."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return


def probe(url: str, run: str) -> None:
    """Appends one entry after the other, until it is ended."""
    first()
    log, me = RedisLog.open(url, run), Producer(PROBE, 0)
    pauses = random.Random(1)
    for number in itertools.count():
        time.sleep(2 * PROBE_S * pauses.random())
        log.append(me, [draft(WaitSamples(step=1, need=1, have=number), 0)])


def watch(url: str, run: str, file: Path) -> None:
    """Reads at once what is appended, until the run has ended, and writes down (when, how late in ms, what) of each."""
    first()
    log = RedisLog.open(url, run)
    position, seen, ended = 0, array("d"), False
    while not ended:
        rows = log.read_rows(position, READ_LIMIT, BLOCK_MS)
        now = time.monotonic_ns()
        for row in rows:
            what = OF_PROBE if row.source == PROBE else OF_ANSWER if row.kind == GenerationFinished.kind else 0.0
            seen.extend((now / 1e9, (now - row.at) / 1e6, what))
            ended = ended or row.kind == RunEnded.kind
        position = rows[-1].position if rows else position
    with file.open("wb") as out:
        seen.tofile(out)


def main(arguments: Sequence[str]) -> None:
    who, load, url, *rest = arguments
    match who:
        case "rollouter":
            Rollouter(load_of(load), url).run()
        case "trainer":
            Trainer(load_of(load), url).run()
        case "probe":
            probe(url, rest[0])
        case "watcher":
            watch(url, rest[0], Path(rest[1]))
        case _:
            follow(who, url)


if __name__ == "__main__":
    main(sys.argv[1:])
