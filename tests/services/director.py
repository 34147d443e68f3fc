"""Plays the rest of a run for replicas that are real: what trainer, rollouter and controller would ask of them, over a real log.

director ──requests──▶ log, inboxes ──▶ replica's shell ──▶ engine
    └────outcomes, each named by the entry that asked for it───┘
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from bus.blobs import get_blob
from bus.entry import Draft, Entry, Producer
from bus.events import (
    AbortRequested,
    BlobRef,
    Event,
    GenerationFinished,
    GenerationRequested,
    KillRequested,
    ReplicaAdded,
    ReplicaFailed,
    RunEnded,
    ServiceStarted,
    SleepRequested,
    WakeRequested,
    WeightUpdateRequested,
)
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.sources import REPLICA
from services.config_file import make_config
from services.context import ServiceContext, make_context
from services.engines.protocol import Engine, Sampling
from services.launcher.protocol import RunPlace, ServiceSpec
from services.payloads import answer_blob, prompt_blob
from services.plan import plan_run
from services.replica.shell import Replica
from services.samples import PartialAnswer, pack_tokens, unpack_answer
from services.weights.store import WeightNotice

E = TypeVar("E", bound=Event)

SETTINGS = {
    "model": {"path": "scripted"}, "rollout": {"engine": "scripted"}, "devices": "unpinned", "async_training": {"total_steps": 1000},
}  # fmt: skip
"""Nobody is started by this plan: each replica is given its engine."""
PROMPT = (1, 2, 3)
LONGEST_S = 120.0


class Director:
    """One run of one standalone and one hybrid replica, which somebody else starts with `context`."""

    def __init__(self, url: str, run: str, folder: Path) -> None:
        self.plan = plan_run(make_config(SETTINGS, "test"), run)
        self._url = url
        self._folder = folder
        self._log = RedisLog.create(url, self.plan, time.time_ns())
        self._blobs = RedisBlobs(url, run)
        self._producers: dict[str, Producer] = {}
        self._read_up_to = 0
        self.epochs: dict[str, int] = {}
        self.added: set[str] = set()
        self.failures: dict[str, ReplicaFailed] = {}
        self._swings: dict[str, int] = defaultdict(int)
        self._sample = 0
        self.outcomes: dict[int, list[Entry]] = defaultdict(list)
        """Position of what was asked -> what replicas said of it."""
        for source in ("rollouter", "controller"):
            first_word = Draft(ServiceStarted(code="test"), derived=False, cause=0, at=time.time_ns())
            self._producers[source] = self._log.attach(source, first_word).producer

    @property
    def hybrid(self) -> str:
        """Name of the hybrid replica."""
        return self.plan.hybrid[0]

    @property
    def standalone(self) -> str:
        """Name of the other one."""
        return self.plan.standalone[0]

    def context(self, name: str, *, in_process: bool = True) -> ServiceContext:
        """What a replica is started with."""
        place = RunPlace(self._url, self.plan.run, self._folder)
        return make_context(place, ServiceSpec(REPLICA, name), self.plan, "test", in_process=in_process)

    def wait_until_there(self, name: str, within_s: float = 600) -> None:
        """Returns once the replica has said that it was added."""
        self._wait(f"{name} to be added", lambda: name in self.added, within_s)

    @contextmanager
    def serving(self, name: str, engine: Engine, slots: int) -> Iterator[None]:
        """The shell of one incarnation of a replica in a thread, until the run has ended; entered when it is there."""
        self.added.discard(name)
        thread = threading.Thread(target=Replica(self.context(name), engine, Sampling(), Sampling(), slots=slots).run, name=name)
        thread.start()
        try:
            self.wait_until_there(name)
            yield
        finally:
            self.end()
            thread.join(60)
        assert not thread.is_alive()

    def ask(
        self, name: str, count: int, max_new_tokens: int, prefix: BlobRef | None = None, prompt: Sequence[int] = PROMPT, attempt: int = 1
    ) -> list[int]:
        """So many requests to a replica, each for a sample of its own; returns their positions."""
        events: list[Event] = []
        for _ in range(count):
            self._sample += 1
            self._blobs.put(prompt_blob(self._sample), pack_tokens(tuple(prompt)))
            request = GenerationRequested(
                request=f"{self._sample}.0", attempt=1, replica=name, epoch=self._epoch(name), swing=self._swings[name],
                sample=self._sample, answer=0, max_new_tokens=max_new_tokens, prefix=prefix,
            )  # fmt: skip
            events.append(request)
        return self._say("rollouter", events)

    def abort(self, name: str) -> int:
        """All that the replica has in flight."""
        event = AbortRequested(replica=name, epoch=self._epoch(name), reason="swing", swing=self._swings[name])
        return self._say("controller", [event])[0]

    def wake(self, name: str, swing: int, notice: WeightNotice) -> int:
        """By a swing, with published weights."""
        self._swings[name] = swing
        event = WakeRequested(
            replica=name, epoch=self._epoch(name), swing=swing, version=notice.version, revision=notice.revision, uri=notice.uri,
            digest=notice.digest, delta=notice.delta,
        )  # fmt: skip
        return self._say("controller", [event])[0]

    def sleep(self, name: str) -> int:
        """At the end of the swing that woke it."""
        event = SleepRequested(replica=name, epoch=self._epoch(name), swing=self._swings[name])
        return self._say("controller", [event])[0]

    def update(self, name: str, notice: WeightNotice, mode: Literal["abort", "keep"] = "abort") -> int:
        """To published weights."""
        event = WeightUpdateRequested(
            replica=name, epoch=self._epoch(name), version=notice.version, revision=notice.revision, uri=notice.uri, digest=notice.digest,
            mode=mode, delta=notice.delta,
        )  # fmt: skip
        return self._say("rollouter", [event])[0]

    def kill(self, name: str) -> None:
        """Ends its process."""
        self._say("controller", [KillRequested(replica=name, epoch=self._epoch(name), reason="test")])

    def close(self) -> None:
        """Ends its own connections."""
        self._log.close()
        self._blobs.close()

    def end(self) -> None:
        """The run's end, after which replicas end by themselves."""
        self._say("controller", [RunEnded(reason="completed")])

    def outcome(self, position: int, kind: type[E], within_s: float = LONGEST_S) -> E:
        """The one thing that was said of what was asked at `position`. Fails if it is of another kind, or said twice."""
        self._wait(f"an outcome of {position}", lambda: position in self.outcomes, within_s)
        (entry,) = self.outcomes[position]
        assert isinstance(entry.event, kind), f"of {position} was said {entry.event!r}"
        return entry.event

    def finished(self, positions: Sequence[int], within_s: float = LONGEST_S) -> list[GenerationFinished]:
        """The outcome of each of these requests."""
        return [self.outcome(position, GenerationFinished, within_s) for position in positions]

    def failure(self, name: str, within_s: float = LONGEST_S) -> ReplicaFailed:
        """What the replica said of itself."""
        self._wait(f"{name} to fail", lambda: name in self.failures, within_s)
        return self.failures[name]

    def answer(self, finished: GenerationFinished) -> PartialAnswer:
        """The tokens of a request that ended with some."""
        assert finished.blob is not None, f"{finished.request} ended as {finished.outcome}"
        return unpack_answer(get_blob(self._blobs, finished.blob))

    def forget(self, positions: Sequence[int]) -> None:
        """Removes what these requests left on the server and here, as the janitor does it."""
        names = []
        for finished in self.finished(positions):
            names += [prompt_blob(int(finished.request.partition(".")[0])), answer_blob(finished.request, finished.attempt)]
        self._blobs.delete(names)
        for position in positions:
            del self.outcomes[position]

    def read(self, block_ms: int = 0) -> None:
        """Takes note of what is new in the log."""
        for entry in self._log.read(self._read_up_to, 1000, block_ms):
            self._read_up_to = entry.position
            name = entry.source.removeprefix("replica:")
            if name == entry.source:
                continue
            if entry.cause:
                self.outcomes[entry.cause].append(entry)
            match entry.event:
                case ServiceStarted():
                    self.epochs[name] = entry.epoch
                case ReplicaAdded():
                    self.added.add(name)
                case ReplicaFailed() as failed:
                    self.failures[name] = failed
                case _:
                    pass

    def _epoch(self, name: str) -> int:
        self._wait(f"{name} to start", lambda: name in self.epochs, LONGEST_S)
        return self.epochs[name]

    def _say(self, source: str, events: Sequence[Event]) -> list[int]:
        drafts = [Draft(event, derived=True, cause=1, at=time.time_ns()) for event in events]
        first = self._log.append(self._producers[source], drafts)
        return list(range(first, first + len(drafts)))

    def _wait(self, what: str, done: Callable[[], bool], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < deadline, f"waited {within_s} s for {what}: failed are {self.failures}"
            self.read(block_ms=100)
