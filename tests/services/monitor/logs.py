"""Hand-written logs for the monitor: every entry with its source's own time, in seconds."""

from __future__ import annotations

from typing import Literal

from bus.entry import Draft, Entry
from bus.events import (
    BatchFormed,
    BlobRef,
    BoundaryOpened,
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaAdded,
    RunPlanned,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    StepDone,
    SwitchStarted,
    WeightsPublished,
)
from bus.memory_log import MemoryStore

OFFSETS_S = {"controller": 1_000.0, "rollouter": 52_000.0, "trainer": -300.0}
"""Clocks of different sources have nothing to do with each other."""


def plan(total_steps: int = 4, standalone: tuple[str, ...] = ("s0",), hybrid: tuple[str, ...] = ("h0",), **others: object) -> RunPlanned:
    fields = {
        "run": "r", "seed": 1, "total_steps": total_steps, "required_samples": 2, "trigger_parameter_sync_step": 2,
        "staleness_threshold": 0.5, "rollout_n": 1, "max_prompt_length": 8, "max_response_length": 8,
        "standalone": standalone, "hybrid": hybrid,
    }  # fmt: skip
    return RunPlanned.model_validate(fields | others)


class Story:
    """A log that is written entry by entry."""

    def __init__(self, planned: RunPlanned | None = None) -> None:
        self.store = MemoryStore.create(planned or plan(), at=0)
        self._epochs: dict[str, int] = {}

    @property
    def entries(self) -> list[Entry]:
        return self.store.entries

    def say(self, source: str, at_s: float, *events: Event) -> Story:
        """Appends events of a source, all at `at_s` on its clock."""
        for event in events:
            if isinstance(event, ServiceStarted):
                self._epochs[source] = self._epochs.get(source, 0) + 1
            at = round((at_s + 1e6 + OFFSETS_S.get(source, 0.0)) * 1e9)
            self.store.write(source, self._epochs.get(source, 0), [Draft(event, derived=False, cause=0, at=at)])
        return self

    def controller(self, at_s: float, *events: Event) -> Story:
        return self.say("controller", at_s, *events)

    def rollouter(self, at_s: float, *events: Event) -> Story:
        return self.say("rollouter", at_s, *events)

    def trainer(self, *events: Event) -> Story:
        return self.say("trainer", 0.0, *events)

    def replica(self, name: str, *events: Event) -> Story:
        return self.say(f"replica:{name}", 0.0, *events)

    def open(self, at_s: float = 10.0) -> Story:
        """Everybody starts; boundary 0 is opened."""
        started = ServiceStarted(code="")
        self.controller(0.0, started).rollouter(0.0, started).trainer(started)
        planned = self.entries[0].event
        assert isinstance(planned, RunPlanned)
        for name in planned.standalone + planned.hybrid:
            role: Literal["standalone", "hybrid"] = "hybrid" if name in planned.hybrid else "standalone"
            self.replica(name, ServiceStarted(code="", role=role), ReplicaAdded(replica=name, role=role, slots=4, seconds=0.0))
        self.trainer(WeightsPublished(version=0, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=0.0))
        self.controller(at_s, BoundaryOpened(version=0))
        return self.rollouter(at_s, SampleStarted(sample=0, version=0))


def request(sample: int, replica: str = "s0", swing: int = 0, attempt: int = 1, prefix_tokens: int = 0) -> GenerationRequested:
    return GenerationRequested(
        request=f"{sample}.0", attempt=attempt, replica=replica, epoch=1, swing=swing, sample=sample, answer=0, max_new_tokens=8,
        prefix_tokens=prefix_tokens,
    )  # fmt: skip


def finished(sample: int, replica: str = "s0", num_tokens: int = 5, attempt: int = 1, outcome: str = "stop") -> GenerationFinished:
    return GenerationFinished.model_validate(
        {"request": f"{sample}.0", "attempt": attempt, "replica": replica, "outcome": outcome, "num_tokens": num_tokens}
    )


def ready(sample: int, oldest_version: int = 0, num_tokens: int = 5, reward: float = 0.5) -> SampleReady:
    return SampleReady(
        sample=sample, num_tokens=num_tokens, oldest_version=oldest_version, newest_version=oldest_version, mean_reward=reward,
        blob=BlobRef(name=f"sample:{sample}", num_bytes=1, digest="0"),
    )  # fmt: skip


def batch(step: int, *samples: int) -> BatchFormed:
    return BatchFormed(step=step, samples=samples, micro_batches=(tuple(range(len(samples))),))


def step_done(
    step: int, version: int = 0, is_boundary: bool = False, wait: float = 0.0, train: float = 1.0, reward: float | None = None
) -> StepDone:
    metrics = {} if reward is None else {"rollout/mean_reward": reward}
    return StepDone(
        step=step, version=version, is_boundary=is_boundary, num_samples=2, seconds={"wait": wait, "train": train, "optimizer": 0.1},
        metrics=metrics,
    )  # fmt: skip


def lend(swing: int, answers: int | None = 0) -> SwitchStarted:
    return SwitchStarted(swing=swing, target="rollout", reason="verdict", answers=answers, give_back_at=4, max_lent_s=60.0)


def give_back(swing: int) -> SwitchStarted:
    return SwitchStarted(swing=swing, target="train", reason="give_back")
