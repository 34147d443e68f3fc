"""Training again what a log says was trained: by a trainer after its restart, before a run goes on from its recording, by `replay train`.

    newest readable checkpoint, or the initial weights ─▶ [ batch ─▶ train ─▶ last step before a publication? begin_cycle, digest ]*

On the same build the weights are those that were published, bit for bit: a digest that differs is what a caller looks for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bus.errors import CheckpointError
from bus.events import (
    BatchFormed,
    BlobRef,
    CheckpointSaved,
    Event,
    RunPlanned,
    SampleDropped,
    SampleReady,
    StepDone,
    WeightsPublished,
)
from services.learner.protocol import Learner, StepReport
from services.learner.wire import published_digest
from services.samples import SampleGroup

logger = logging.getLogger(__name__)

KINDS = tuple(
    kind.kind for kind in (RunPlanned, SampleReady, SampleDropped, BatchFormed, StepDone, WeightsPublished, CheckpointSaved)
)  # fmt: skip
"""The entries that `TrainedSteps` reads."""

Groups = Callable[[BatchFormed], Sequence[SampleGroup]]
"""The samples of a batch, in its order. Raises BlobMissing."""


@dataclass(frozen=True, slots=True)
class Redone:
    """A step that was trained again. `digest` is that of the weights after it, if a version was published then."""

    step: int
    report: StepReport
    published: WeightsPublished | None
    digest: str = ""

    @property
    def differs(self) -> bool:
        """The weights are others than were published."""
        return self.published is not None and self.published.digest != self.digest


@dataclass(frozen=True, slots=True)
class Publication:
    """A version: the step it was published after, and its newest revision."""

    step: int
    event: WeightsPublished


class TrainedSteps:
    """Fold of what was trained, published and saved. Feed it every event of `KINDS` once, in order."""

    def __init__(self) -> None:
        self.plan: RunPlanned | None = None
        self.batches: dict[int, BatchFormed] = {}
        """Step -> its batch, of steps that were finished."""
        self.metrics: dict[int, Mapping[str, float]] = {}
        """Step -> what was measured in it."""
        self.payloads: dict[int, BlobRef] = {}
        """Sample -> its payload, of samples that were not dropped."""
        self.publications: dict[int, Publication] = {}
        """Version -> when it was published."""
        self.checkpoints: list[CheckpointSaved] = []
        self._batch: BatchFormed | None = None

    @property
    def last_step(self) -> int:
        """The last step that was finished; 0 before the first."""
        return next(reversed(self.batches), 0)

    @property
    def published_after(self) -> dict[int, WeightsPublished]:
        """Step -> the version that was published after it."""
        return {publication.step: publication.event for publication in self.publications.values()}

    def apply(self, event: Event) -> None:
        """Takes in one event; others than those of `KINDS` are ignored."""
        match event:
            case RunPlanned():
                self.plan = event
            case SampleReady():
                self.payloads.setdefault(event.sample, event.blob)
            case SampleDropped():
                self.payloads.pop(event.sample, None)
            case BatchFormed():
                self._batch = self._batch if self._batch is not None and self._batch.step >= event.step else event
            case StepDone():
                self._finish(event)
            case WeightsPublished():
                known = self.publications.get(event.version)
                self.publications[event.version] = Publication(known.step if known else self.last_step, event)
            case CheckpointSaved():
                self.checkpoints.append(event)
            case _:
                pass

    def between(self, step: int, last: int) -> list[BatchFormed]:
        """Batches of the steps after `step` up to `last`."""
        return [self.batches[number] for number in range(step + 1, last + 1)]

    def _finish(self, event: StepDone) -> None:
        if self._batch is not None and self._batch.step == event.step and event.step == self.last_step + 1:
            self.batches[event.step] = self._batch
            self.metrics[event.step] = event.metrics


def load_newest(learner: Learner, checkpoints: Sequence[CheckpointSaved], place: Callable[[str], Path]) -> CheckpointSaved | None:
    """Loads the newest of the checkpoints that can be read, and returns it; None: none can, and the learner is as it was.

    `place`: from a checkpoint's URI to its folder; raises CheckpointError when it is not there.
    """
    for saved in reversed(checkpoints):
        try:
            learner.load(place(saved.uri))
        except CheckpointError as error:
            logger.warning("checkpoint skipped: step=%d error=%s", saved.step, error)
        else:
            return saved
    return None


def redo(
    learner: Learner, batches: Iterable[BatchFormed], published_after: Mapping[int, WeightsPublished], groups: Groups
) -> Iterator[Redone]:
    """Trains the batches, which follow the learner's last step; yields each when it is done. Raises BlobMissing, LearnerError."""
    for batch in batches:
        report = learner.train(batch.step, groups(batch), batch.micro_batches)
        published = published_after.get(batch.step)
        if published is None:
            yield Redone(batch.step, report, None)
        else:
            learner.begin_cycle()
            yield Redone(batch.step, report, published, published_digest(learner.weights(), published.dtype))
