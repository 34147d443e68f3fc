"""The replicas of a made-up run, and the samples that they generate."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from bus.events import (
    BlobRef,
    PromptsExhausted,
    ReplicaAdded,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaLost,
    SampleDropped,
    SampleReady,
    SampleStarted,
    ServiceStarted,
)
from policies.view import ScheduleView
from services.policy.conformance.scripts import Script
from services.policy.conformance.written_log import WrittenLog

MOST_SAMPLES = 20_000
"""A script that takes more is broken."""


class Fleet:
    """Standalone replicas always serve, hybrid ones while the devices are lent. Its numbers are drawn from the script's seed."""

    def __init__(self, script: Script, log: WrittenLog) -> None:
        self.script = script
        self._log = log
        self._random = Random(script.seed)
        self._replicas: dict[str, bool] = {}
        """Those that are there: name -> it serves."""
        self._lost: list[str] = []
        self._samples = 0

    @property
    def view(self) -> ScheduleView:
        """What the policy sees."""
        return self._log.view

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.script.rate * sum(self._replicas.values())

    @property
    def sleeping(self) -> tuple[str, ...]:
        """Hybrid replicas that could be woken."""
        return tuple(name for name, serves in self._replicas.items() if name in self.script.hybrid and not serves)

    def add(self, name: str) -> None:
        """A replica starts."""
        source = f"replica:{name}"
        role: Literal["hybrid", "standalone"] = "hybrid" if name in self.script.hybrid else "standalone"
        self._log.start(source, ServiceStarted(code="", role=role))
        self._log.write(ReplicaAdded(replica=name, role=role, slots=self.script.plan.max_running_requests, seconds=1.0), source)
        self._replicas[name] = role == "standalone"

    def lose_or_bring_back(self) -> None:
        """What was lost is there again; else one more is lost."""
        if self._lost:
            self.add(self._lost.pop())
            return
        name = tuple(self._replicas)[self._random.randrange(len(self._replicas))]
        del self._replicas[name]
        self._lost.append(name)
        self._log.write(ReplicaLost(replica=name, epoch=self._log.epoch(f"replica:{name}")))

    def wake(self, names: Sequence[str], swing: int) -> None:
        """They serve."""
        for name in names:
            awake = ReplicaAwake(replica=name, swing=swing, version=self.view.books.version, revision=0, seconds=1.0)
            self._log.write(awake, f"replica:{name}")
            self._replicas[name] = True

    def sleep(self, names: Sequence[str], swing: int) -> None:
        """Those that are still there serve no more."""
        for name in names:
            if name in self._replicas:
                self._replicas[name] = False
                self._log.write(ReplicaAsleep(replica=name, swing=swing, seconds=0.5), f"replica:{name}")

    def _start_samples(self) -> None:
        books = self.view.books
        while books.startable > 0 and not books.last_step_done and len(books.in_flight) < 4 * max(1, len(self._replicas)):
            self._log.write(SampleStarted(sample=books.started, version=books.version))
            if books.prompts_left == 0:
                self._log.write(PromptsExhausted(num_prompts=books.started))

    def next_sample(self, within_s: float = float("inf")) -> float | None:
        """The next sample becomes ready, or is lost; returns the seconds that took. None: nothing comes within that time."""
        self._start_samples()
        rate, in_flight = self.rate, tuple(self.view.books.in_flight)
        if not in_flight or rate == 0:
            return None
        seconds = self._random.uniform(0.4, 1.6) / rate
        if seconds > within_s:
            return None
        self._samples += 1
        assert self._samples < MOST_SAMPLES
        self._log.pass_seconds(seconds)
        sample = in_flight[self._random.randrange(min(3, len(in_flight)))]
        if self.script.samples_fail and self._random.random() < 0.1:
            self._log.write(SampleDropped(sample=sample, reason="failed"), "rollouter")
        else:
            self._log.write(self._ready(sample))
        return seconds

    def _ready(self, sample: int) -> SampleReady:
        books, tokens = self.view.books, self._random.randrange(4, 64)
        blob = BlobRef(name=f"sample:{sample}", num_bytes=1, digest="d")
        oldest = books.in_flight.get(sample, books.version)
        return SampleReady(
            sample=sample, num_tokens=tokens, oldest_version=oldest, newest_version=books.version, mean_reward=0.5, blob=blob
        )

    def pass_seconds(self, seconds: float) -> None:
        """Time goes by, and samples become ready."""
        while seconds > 0:
            taken = self.next_sample(seconds)
            if taken is None:
                self._log.pass_seconds(seconds)
                return
            seconds -= taken
