"""Brings a trainer's learner to where the log is: newest valid checkpoint ▸ redo of every later batch, compared at each published digest.

Where published weights are gone with the machine in whose memory they were, it begins at a checkpoint that is as old as they are, and puts
them back on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bus.errors import LearnerError
from bus.events import Event, RedoDiverged, WeightsPublished
from services.learner.protocol import Learner
from services.learner.redo import Groups, load_newest, redo
from services.learner.wire import as_published, published_digest
from services.shell import Facts
from services.trainer.core import TrainerCore
from services.trainer.files import CheckpointFiles
from services.trainer.sharing import Sharing

logger = logging.getLogger(__name__)

Republish = Callable[[int, int], WeightsPublished]
"""Publishes what the learner has as this version and revision."""


class Recovery:
    """Of one incarnation; see `services.learner.redo`."""

    def __init__(self, core: TrainerCore, files: CheckpointFiles, sharing: Sharing, groups: Groups, republish: Republish) -> None:
        self._core = core
        self._files = files
        self._sharing = sharing
        self._groups = groups
        self._republish = republish

    def restore(self, learner: Learner, position: int) -> Facts:
        """The facts say which weights are back, and where the redo came to others than were published. `position`: of the log."""
        wanted = self._sharing.wanted()
        last = self._core.books.steps_done
        step = self._load(learner, position, [*sorted(wanted), last])
        batches = [batch for batch in self._core.history if step < batch.step <= last]
        facts: list[tuple[Event, int]] = []
        if step in wanted:
            facts += self._compare(learner, position, wanted[step], published_digest(learner.weights(), wanted[step].dtype))
        for redone in redo(learner, batches, dict(self._core.publications.values()), self._groups):
            logger.info("redone: step=%d of=%d", redone.step, last)
            if redone.published is not None:
                facts += self._compare(learner, position, redone.published, redone.digest)
        return facts

    def _load(self, learner: Learner, position: int, steps: list[int]) -> int:
        """Loads the newest checkpoint that is not after the first of these steps for which there is one; returns its step."""
        # One that was saved in another history of this run, which the log has lost, is none of this one.
        known = [saved for saved in self._core.kept.saved if saved.position <= position]
        whole = self._core.kept.oldest is None
        for step in steps:
            saved = load_newest(learner, [saved for saved in known if saved.step <= step], self._files.path)
            if saved is not None or whole:
                return 0 if saved is None else saved.step
        raise LearnerError(
            f"none of the checkpoints {[saved.uri for saved in self._core.kept.saved]} can be read, and the batches up to the oldest "
            "are no longer kept: restore one of these folders, or start a new run"
        )

    def _compare(self, learner: Learner, position: int, published: WeightsPublished, digest: str) -> Facts:
        if published.digest == digest:
            if published not in self._sharing.wanted().values():
                return []
            return self._sharing.put_back(published, as_published(learner.weights(), published.dtype))
        plan = self._core.books.plan
        assert plan is not None
        diverged = RedoDiverged(
            version=published.version, recorded_digest=published.digest, redone_digest=digest, action=plan.on_redo_diverged
        )
        facts: list[tuple[Event, int]] = [(diverged, position)]
        if plan.on_redo_diverged == "republish" and published.version == self._core.books.version:
            facts.append((self._republish(published.version, published.revision + 1), position))
        return facts
