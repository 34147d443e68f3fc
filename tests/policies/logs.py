"""Writes logs by hand for the tests of policies: a run told step by step, on a real in-memory log."""

from __future__ import annotations

from collections.abc import Callable

from bus.core import Core
from bus.entry import Draft, Entry
from bus.events import (
    BatchFormed,
    BlobRef,
    BoundaryOpened,
    DevicesYielded,
    Event,
    PolicyAttached,
    RunPlanned,
    SampleReady,
    SampleStarted,
    StepDone,
    SwitchDone,
    SwitchStarted,
    TrainGranted,
    WaitSamples,
    WeightsPublished,
)
from bus.host import Host, rebuild
from bus.memory_log import MemoryLog, MemoryStore

SECOND = 1_000_000_000


def plan(**changes: object) -> RunPlanned:
    """R = 4, K = 2, so S = 8; one standalone and one hybrid replica."""
    fields: dict[str, object] = {
        "run": "r",
        "seed": 1,
        "total_steps": 1000,
        "required_samples": 4,
        "trigger_parameter_sync_step": 2,
        "staleness_threshold": 0.5,
        "rollout_n": 2,
        "max_prompt_length": 8,
        "max_response_length": 8,
        "standalone": ("s0",),
        "hybrid": ("h0",),
    }
    return RunPlanned.model_validate(fields | changes)


class Story:
    """A log being written. Listeners (`view.apply`, `host.take`) get every entry, in order, as soon as it is there."""

    def __init__(self, planned: RunPlanned, *listeners: Callable[[Entry], object]) -> None:
        self.plan = planned
        self.store = MemoryStore.create(planned, at=0)
        self.listeners = list(listeners)
        self.epochs = {"trainer": 1, "rollouter": 1, "controller": 1}
        self.version = 0
        self._now = 0
        self._delivered = 0
        self._started = 0
        self._swings = 0
        self._steps = 0
        self._ready: list[int] = []
        self.deliver()

    @property
    def entries(self) -> list[Entry]:
        return self.store.entries

    def deliver(self) -> None:
        while self._delivered < len(self.entries):
            entry = self.entries[self._delivered]
            self._delivered += 1
            for listener in self.listeners:
                listener(entry)

    def write(self, event: Event, source: str | None = None, *, cause: int = 0, derived: bool = False) -> int:
        """Appends an event by its emitter's current incarnation; returns its position."""
        emitters = event.emitted_by()
        source = source or (emitters[0] if emitters else "monitor")
        position = self.store.write(source, self.epochs.get(source, 0), [Draft(event, derived=derived, cause=cause, at=self._now)])
        self.deliver()
        return position

    def pass_seconds(self, seconds: float) -> None:
        self._now += round(seconds * SECOND)

    def samples(self, count: int) -> None:
        """`count` prompts are taken, and become ready."""
        for _ in range(count):
            self.write(SampleStarted(sample=self._started, version=self.version))
            self._ready.append(self._started)
            self.write(ready(self._started, self.version))
            self._started += 1

    def open_first_boundary(self) -> None:
        self.publish(0)
        self.write(BoundaryOpened(version=0))

    def publish(self, version: int) -> None:
        self.version = version
        self.write(
            WeightsPublished(version=version, revision=0, transport="file", uri="w", digest="d", num_bytes=1, seconds=0.1),
        )

    def grant(self) -> None:
        self.write(TrainGranted(version=self.version, reason="verdict"))

    def step(self, wait_s: float = 0.0, lacking: int = 0) -> StepDone:
        """One step; of the samples that it needs, `lacking` become ready only after the trainer asked."""
        self._steps += 1
        need = self.plan.required_samples
        self.samples(need - lacking - len(self._ready))
        if lacking:
            self.write(WaitSamples(step=self._steps, need=need, have=need - lacking))
            self.samples(lacking)
        batch, self._ready = tuple(self._ready[:need]), self._ready[need:]
        self.write(BatchFormed(step=self._steps, samples=batch, micro_batches=(tuple(range(need)),)))
        is_boundary = self._steps % self.plan.trigger_parameter_sync_step == 0
        seconds = {"wait": wait_s, "train": 2.0}
        done = StepDone(step=self._steps, version=self.version, is_boundary=is_boundary, num_samples=need, seconds=seconds, metrics={})
        self.write(done)
        return done

    def cycle(self, wait_s: float = 0.0, lacking: int = 0) -> None:
        """All steps of a cycle, of which the first one waits, and the publication."""
        self.step(wait_s, lacking)
        for _ in range(self.plan.trigger_parameter_sync_step - 1):
            self.step()
        self.publish(self.version + 1)

    def start_lend(self, give_back_at: int = 4, answers: int | None = None, reason: str = "verdict") -> int:
        self._swings += 1
        event = {"swing": self._swings, "target": "rollout", "reason": reason, "answers": answers, "give_back_at": give_back_at}
        self.write(SwitchStarted.model_validate(event))
        self.write(DevicesYielded(swing=self._swings, seconds=0.1))
        return self._swings

    def lend(self, seconds: float = 3.0, give_back_at: int = 4, answers: int | None = None) -> int:
        """The devices are lent; the swing takes `seconds`."""
        swing = self.start_lend(give_back_at, answers)
        self.pass_seconds(seconds)
        self.write(SwitchDone(swing=swing, target="rollout", replicas=("h0",)))
        return swing

    def start_return(self) -> int:
        self._swings += 1
        self.write(SwitchStarted(swing=self._swings, target="train", reason="give_back"))
        return self._swings

    def give_back(self, seconds: float = 1.0) -> None:
        swing = self.start_return()
        self.pass_seconds(seconds)
        self.write(SwitchDone(swing=swing, target="train"))

    def attach(self, core: Core, attached: PolicyAttached) -> Host:
        """A policy service starts on this log, as after a crash or a swap: it is fenced in, rebuilt, and asked."""
        log = MemoryLog(self.store)
        draft = Draft(attached, derived=False, cause=0, at=self._now)
        start = log.attach(core.source, draft)
        rebuild(core, self.entries)
        host = Host(core, log, start.producer, lambda: self._now)
        host.decide(start.position)

        def take(entry: Entry) -> None:
            if entry.position > start.position and self.store.epochs[core.source] == start.producer.epoch:
                host.take([entry])

        self.listeners.append(take)
        self.deliver()
        return host


def ready(sample: int, version: int = 0) -> SampleReady:
    blob = BlobRef(name=f"sample:{sample}", num_bytes=1, digest="d")
    return SampleReady(sample=sample, num_tokens=3, oldest_version=version, newest_version=version, mean_reward=0.5, blob=blob)
