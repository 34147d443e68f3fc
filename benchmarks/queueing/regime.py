"""A regime: the numbers of one kind of run, and how long each of its samples takes.

Sample i takes mean_i · exp(σ·z_i − σ²/2) seconds, σ² = ln(1 + cv²), so that its mean is mean_i and its coefficient of variation cv. z_i
depends on the seed and i only: all policies, and all regimes, see the same luck.
"""

from __future__ import annotations

from math import exp, floor, log, sqrt
from pathlib import Path
from random import Random
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).parent.parent / "regimes.yaml"
BURST_EVERY = 10


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SampleSeconds(_Settings):
    """Seconds that a sample occupies a slot."""

    mean: float | tuple[float, float]
    """Of all samples, or of the first and the last one, linear in between."""
    cv: float = Field(ge=0)
    """Standard deviation / mean."""
    every_tenth_cycle_times: float = 1.0
    """Samples 9·S … 10·S − 1, 19·S … 20·S − 1, … take so many times as long."""


class Regime(_Settings):
    """All numbers of a run. R, K and S as everywhere: samples of a step, steps of a cycle, samples of a cycle."""

    name: str
    R: int = Field(ge=1)
    K: int = Field(ge=1)
    staleness_threshold: float = Field(ge=0)
    cycles: int = Field(ge=1)
    seeds: tuple[int, ...]
    sync_seconds: float = Field(ge=0)
    move_seconds: float = Field(ge=0)
    standalone_slots: int = Field(ge=1)
    hybrid_slots: int = Field(ge=1)
    activate_seconds: float = Field(ge=0)
    deactivate_seconds: float = Field(ge=0)
    sample_seconds: SampleSeconds
    train_seconds_per_cycle: float = Field(ge=0)

    @property
    def cycle_samples(self) -> int:
        """S."""
        return self.R * self.K

    @property
    def limit(self) -> int:
        """Most samples in flight, ready, or in a batch formed since the last publication."""
        return floor(self.cycle_samples * (1 + self.staleness_threshold))

    @property
    def train_step_s(self) -> float:
        """Seconds of training one step."""
        return self.train_seconds_per_cycle / self.K

    def with_free_swings(self) -> Regime:
        """The same with swings that cost nothing, as if all of their cost were hidden behind other work."""
        return self.model_copy(update={"activate_seconds": 0.0, "deactivate_seconds": 0.0, "move_seconds": 0.0})

    def sample_lengths(self, seed: int) -> list[float]:
        """Seconds of every sample that a run can start."""
        normal = Random(seed)
        cv = self.sample_seconds.cv
        sigma = sqrt(log(1 + cv * cv))
        count = self.cycle_samples * self.cycles + self.limit
        return [self._mean(sample) * exp(sigma * normal.gauss(0.0, 1.0) - sigma * sigma / 2) for sample in range(count)]

    def _mean(self, sample: int) -> float:
        seconds = self.sample_seconds
        if isinstance(seconds.mean, tuple):
            first, last = seconds.mean
            share = min(1.0, sample / max(1, self.cycle_samples * self.cycles - 1))
            mean = first + (last - first) * share
        else:
            mean = seconds.mean
        in_burst = (sample // self.cycle_samples + 1) % BURST_EVERY == 0
        return mean * seconds.every_tenth_cycle_times if in_burst else mean


class Regimes(_Settings):
    """A file of regimes. Its settings are `common` ones unless the regime has its own."""

    by_name: dict[str, Regime]
    stationary: tuple[str, ...]
    changing: tuple[str, ...]

    @classmethod
    def load(cls, path: Path = FILE) -> Regimes:
        """Reads a file."""
        content: dict[str, Any] = yaml.safe_load(path.read_text())
        common = content.pop("common")
        by_name = {name: {"name": name, **common, **own} for name, own in content.pop("regimes").items()}
        return cls.model_validate({"by_name": by_name, **content})
