"""What training used and gave, folded from the log: rewards, staleness, waits, and what was ready when a step ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from bus.events import (
    BatchFormed,
    CheckpointSaved,
    DevicesReloaded,
    DevicesYielded,
    Event,
    SampleDropped,
    SampleReady,
    StepDone,
    WeightsPublished,
)
from services.agreement import LOGPROB_DIFF

REWARD = "rollout/mean_reward"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Smallest, mean and largest of some numbers."""

    smallest: float
    mean: float
    largest: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Distribution | None:
        """None of nothing."""
        return cls(min(numbers), fsum(numbers) / len(numbers), max(numbers)) if numbers else None

    def as_dict(self) -> dict[str, object]:
        """As summary.json has it."""
        return {"min": self.smallest, "mean": self.mean, "max": self.largest}


class Training:
    """Fold of the trainer's events."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        """Mean reward of each step, in order."""
        self.waits_s: list[float] = []
        """Seconds that each step waited for its batch, devices home."""
        self.staleness: dict[int, int] = {}
        """Versions between a sample's oldest weights and the version it was trained in -> how many trained samples have that."""
        self.tokens = 0
        """Answer tokens of trained samples."""
        self.seconds: dict[str, float] = {}
        """What it was for -> seconds, as the trainer measured them; some go on at the same time as others."""
        self.ready: list[int] = []
        """Samples that were ready when each step ended."""
        self.logprob_diff: dict[str, list[float]] = {}
        """Metric -> its value in each step that has it."""
        self.newest: StepDone | None = None
        self.newest_staleness: Distribution | None = None
        """Of the samples of the newest step."""
        self._samples: dict[int, SampleReady] = {}
        self._batch: BatchFormed | None = None
        self._steps_done = 0

    def apply(self, event: Event, ready: int) -> None:
        """Takes in one event; `ready`: samples that are ready after it."""
        match event:
            case SampleReady():
                self._samples.setdefault(event.sample, event)
            case SampleDropped():
                self._samples.pop(event.sample, None)
            case BatchFormed():
                self._batch = event
            case StepDone() if event.step == self._steps_done + 1:
                self._finish(event, ready)
            case WeightsPublished():
                self._spend("publish", event.seconds)
            case CheckpointSaved():
                self._spend("checkpoint", event.seconds)
            case DevicesYielded():
                self._spend("yield", event.seconds)
            case DevicesReloaded():
                self._spend("reload", event.seconds)
            case _:
                pass

    def staleness_of_trained(self) -> Distribution | None:
        """Over all trained samples; None before the first."""
        counts = self.staleness
        if not counts:
            return None
        return Distribution(min(counts), sum(age * count for age, count in counts.items()) / sum(counts.values()), max(counts))

    def _finish(self, event: StepDone, ready: int) -> None:
        self._steps_done = event.step
        batch = self._batch.samples if self._batch is not None else ()
        samples = [self._samples.pop(sample) for sample in batch if sample in self._samples]
        self._batch = None
        ages = [event.version - sample.oldest_version for sample in samples]
        for age in ages:
            self.staleness[age] = self.staleness.get(age, 0) + 1
        self.newest, self.newest_staleness = event, Distribution.of(ages)
        self.ready.append(ready)
        self.tokens += sum(sample.num_tokens for sample in samples)
        reward = event.metrics.get(REWARD, mean([sample.mean_reward for sample in samples]))
        if reward is not None:
            self.rewards.append(reward)
        self.waits_s.append(event.seconds.get("wait", 0.0))
        for phase, seconds in event.seconds.items():
            self._spend(phase, seconds)
        for name, value in event.metrics.items():
            if name.startswith(LOGPROB_DIFF):
                self.logprob_diff.setdefault(name, []).append(value)

    def _spend(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


def mean(numbers: Sequence[float]) -> float | None:
    """None of nothing."""
    return fsum(numbers) / len(numbers) if numbers else None


def quarter(numbers: Sequence[float], last: bool) -> float | None:
    """Mean of the first or the last quarter, at least one number."""
    size = max(1, len(numbers) // 4)
    return mean(numbers[-size:] if last else numbers[:size])
