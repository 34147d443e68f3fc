"""What came of training a recorded run again: versions and steps, each then and now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan


@dataclass(frozen=True, slots=True)
class Version:
    """A version twice: the digest that was published, and the one it has now."""

    version: int
    step: int
    recorded: str
    now: str
    revision: int = 0
    """Over 0: it was published again, after a trainer's redo had come to other weights."""

    @property
    def differs(self) -> bool:
        return self.recorded != self.now


@dataclass(frozen=True, slots=True)
class Step:
    """A step twice: what was measured in it then and now. `changed`: with other settings than in the run."""

    step: int
    recorded: Mapping[str, float]
    now: Mapping[str, float]
    changed: bool

    def other_metric(self) -> str | None:
        """The first metric that is not the same in every bit; None: all are."""
        names = sorted(self.recorded.keys() & self.now.keys())
        return next((name for name in names if not _same(self.recorded[name], self.now[name])), None)


@dataclass
class Report:
    """`first` is the version that it began at; with `settings`, that were changed from there on, digests are not compared."""

    first: int
    last: int
    settings: Sequence[str] = ()
    start: str = "the initial weights"
    """What it began with."""
    versions: list[Version] = field(default_factory=list)
    """Those trained with the run's settings."""
    steps: list[Step] = field(default_factory=list)
    num_samples: int = 0
    error: str = ""
    """Why it could not go on."""

    @property
    def different(self) -> Version | None:
        """The first version whose weights are others than were published, trained with the run's settings."""
        return next((version for version in self.versions if version.differs), None)

    @property
    def passed(self) -> bool:
        return not self.error and (self.different is None or bool(self.settings))

    @property
    def other_step(self) -> tuple[Step, str] | None:
        """The first step in which something else was measured with the run's settings, and what."""
        for step in self.steps:
            name = None if step.changed else step.other_metric()
            if name is not None:
                return step, name
        return None


def _same(left: float, right: float) -> bool:
    return left == right or (isnan(left) and isnan(right))
