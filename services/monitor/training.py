"""What training used and gave, folded from the log: rewards, staleness, and where the trainer's seconds went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from bus.events import BatchFormed, CheckpointSaved, Event, SampleDropped, SampleReady, StepDone, WeightsPublished

REWARD = "rollout/mean_reward"
STEP_PHASES = ("wait", "load", "train")
"""Keys of StepDone.seconds that exclude each other."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Smallest, mean and largest of some numbers."""

    smallest: float
    mean: float
    largest: float


class Training:
    """Fold of the trainer's events."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        """Mean reward of each step, in order."""
        self.waits_s: list[float] = []
        """Seconds that each step waited for its batch, devices home."""
        self.staleness: list[int] = []
        """Of each trained sample: versions between its oldest weights and the version it was trained in."""
        self.tokens = 0
        """Answer tokens of trained samples."""
        self.seconds: dict[str, float] = {}
        """Class -> seconds, as the trainer measured them."""
        self._samples: dict[int, SampleReady] = {}
        self._batch: BatchFormed | None = None
        self._steps_done = 0

    def apply(self, event: Event, home: bool) -> None:
        """Takes in one event; `home`: no swing runs and the devices are the trainer's."""
        match event:
            case SampleReady():
                self._samples.setdefault(event.sample, event)
            case SampleDropped():
                self._samples.pop(event.sample, None)
            case BatchFormed():
                self._batch = event
            case StepDone() if event.step == self._steps_done + 1:
                self._finish(event)
            case WeightsPublished() if home:
                self._spend("publish", event.seconds)
            case CheckpointSaved() if home:
                # One that was saved while a swing began is in the swing's seconds.
                self._spend("checkpoint", event.seconds)
            case _:
                pass

    def staleness_of_trained(self) -> Distribution | None:
        """Over all trained samples; None before the first."""
        if not self.staleness:
            return None
        return Distribution(min(self.staleness), sum(self.staleness) / len(self.staleness), max(self.staleness))

    def _finish(self, event: StepDone) -> None:
        self._steps_done = event.step
        batch = self._batch.samples if self._batch is not None else ()
        samples = [self._samples.pop(sample) for sample in batch if sample in self._samples]
        self._batch = None
        self.staleness += [event.version - sample.oldest_version for sample in samples]
        self.tokens += sum(sample.num_tokens for sample in samples)
        reward = event.metrics.get(REWARD, mean([sample.mean_reward for sample in samples]))
        if reward is not None:
            self.rewards.append(reward)
        self.waits_s.append(event.seconds.get("wait", 0.0))
        for phase in STEP_PHASES:
            self._spend(phase, event.seconds.get(phase, 0.0))

    def _spend(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


def mean(numbers: Sequence[float]) -> float | None:
    """None of nothing."""
    return fsum(numbers) / len(numbers) if numbers else None


def quarter(numbers: Sequence[float], last: bool) -> float | None:
    """Mean of the first or the last quarter, at least one number."""
    size = max(1, len(numbers) // 4)
    return mean(numbers[-size:] if last else numbers[:size])
