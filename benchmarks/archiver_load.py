"""What a run of many replicas asks of an archiver: its entries and payloads at their rate, from one process.

    started, 8 requests ─▶ 8 outcomes with an answer each ─▶ ready, with a sample ─▶ steps ─▶ checkpoints, after which samples are dead

Everything that follows on something comes right behind it and not a minute later: for who records it that is the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.scale_load import Load, Payloads, stored
from bus.blobs import blob_digest
from bus.connection import Connection
from bus.entry import Draft, Producer
from bus.events import (
    BatchFormed,
    BlobRef,
    CheckpointSaved,
    Event,
    GenerationFinished,
    GenerationRequested,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    StepDone,
    WeightsPublished,
)
from bus.keys import Keys
from bus.log import Log
from bus.redis_blobs import storing
from bus.trimming import Trimming
from services.payloads import answer_blob, sample_blob

HOLDERS = ("trainer", "rollouter", "controller")
TELL_S = 1.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A payload as it lies on the server, and what an entry says of it."""

    value: bytes
    digest: str
    num_tokens: int

    @property
    def num_bytes(self) -> int:
        return len(self.value) - len(self.digest) // 2

    @classmethod
    def of(cls, data: bytes, num_tokens: int) -> Stored:
        return cls(stored(data), blob_digest(data), num_tokens)

    def ref(self, name: str) -> BlobRef:
        return BlobRef(name=name, num_bytes=self.num_bytes, digest=self.digest)


@dataclass
class ManyReplicas:
    """Says what a run of `load` says."""

    log: Log
    connection: Connection
    trimming: Trimming
    load: Load
    position: int = 0
    payload_bytes: int = 0
    appended: list[tuple[int, float]] = field(default_factory=list)
    """(position of the newest entry, when it was appended)."""

    def __post_init__(self) -> None:
        payloads = Payloads.of(self.load)
        self._answers = [Stored.of(data, tokens) for tokens, data in payloads.answers]
        self._samples = [Stored.of(data, 0) for data in payloads.samples]
        self._producer: Producer = self.log.attach("rollouter", _draft(ServiceStarted(code=""))).producer
        self.position = self.log.last_position()
        self._number = 0
        self._keys = Keys(self.log.run)
        self._tell_at = 0.0

    @property
    def per_sample(self) -> int:
        """Entries."""
        return 2 + 2 * self.load.answers

    def recorded(self) -> Mapping[str, str]:
        """Digest of each payload that must be recorded by now, by its name."""
        found = {sample_blob(number): self._samples[number % len(self._samples)].digest for number in range(self._number)}
        for number in range(self._number):
            found |= {answer_blob(f"{number}.{other}", 1): self._answer(number, other).digest for other in range(self.load.answers)}
        return found

    def _answer(self, number: int, other: int) -> Stored:
        return self._answers[(number * 7 + other) % len(self._answers)]

    def say(self, *events: Event) -> None:
        self.position = self.log.append(self._producer, [_draft(event) for event in events]) + len(events) - 1
        self.appended.append((self.position, time.monotonic()))

    def samples(self, count: int) -> None:
        """Says all of so many samples, and lets go of what is trained."""
        for _ in range(count):
            self._sample(self._number)
            self._number += 1
            if self._number % self.load.step_samples == 0:
                self._step(self._number // self.load.step_samples)
        if (now := time.monotonic()) >= self._tell_at:
            self._tell_at = now + TELL_S
            for holder in HOLDERS:
                self.trimming.report(holder, self.position)

    def _sample(self, number: int) -> None:
        answers = [self._answer(number, other) for other in range(self.load.answers)]
        requests = [f"{number}.{other}" for other in range(self.load.answers)]
        named = {answer_blob(request, 1): answer for request, answer in zip(requests, answers, strict=True)}
        named[sample_blob(number)] = sample = self._samples[number % len(self._samples)]
        self._store(named)
        replicas = [self.load.names[(number * self.load.answers + other) % self.load.replicas] for other in range(self.load.answers)]
        asked: list[Event] = [
            GenerationRequested(
                request=request, attempt=1, replica=replica, epoch=1, swing=0, sample=number, answer=other,
                max_new_tokens=self.load.longest,
            )
            for other, (request, replica) in enumerate(zip(requests, replicas, strict=True))
        ]  # fmt: skip
        done = [
            GenerationFinished(
                request=request, attempt=1, replica=replica, outcome="stop", num_tokens=answer.num_tokens,
                version_spans=((9, answer.num_tokens),), blob=answer.ref(answer_blob(request, 1)),
            )
            for request, replica, answer in zip(requests, replicas, answers, strict=True)
        ]  # fmt: skip
        ready = SampleReady(
            sample=number, num_tokens=sum(answer.num_tokens for answer in answers), oldest_version=8, newest_version=9, mean_reward=0.5,
            blob=sample.ref(sample_blob(number)),
        )  # fmt: skip
        self.say(SampleStarted(sample=number, version=9), *asked, *done, ready)

    def _store(self, named: dict[str, Stored]) -> None:
        values = {self._keys.blob(name): payload.value for name, payload in named.items()}
        self.connection.transact(*storing(self._keys.size, values))
        self.payload_bytes += sum(payload.num_bytes for payload in named.values())

    def _step(self, step: int) -> None:
        size = self.load.step_samples
        samples = tuple(range(self._number - size, self._number))
        self.say(
            BatchFormed(step=step, samples=samples, micro_batches=(tuple(range(size)),)),
            StepDone(
                step=step, version=step // self.load.cycle_steps, is_boundary=step % self.load.cycle_steps == 0, num_samples=size,
                seconds={"train": 1.0}, metrics={"loss": 0.5},
            ),
        )  # fmt: skip
        if step % self.load.cycle_steps == 0:
            version = step // self.load.cycle_steps
            self.say(
                WeightsPublished(
                    version=version, revision=0, transport="file", uri=f"file:///weights-{version}", digest="", num_bytes=1, seconds=0.0
                ),
                CheckpointSaved(
                    step=step, version=version, position=self.position, uri=f"file:///checkpoint-{step}", digest="", seconds=0.0
                ),
            )


def _draft(event: Event) -> Draft:
    return Draft(event, derived=False, cause=0, at=time.time_ns())
