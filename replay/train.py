"""Trains again what a recorded run trained: no engine, no server, only its entries, payloads and checkpoints.

    initial weights, or a checkpoint ─▶ recorded batches, one after the other ─▶ digest of every published version, compared
                                                  └─ from a version on with other settings of the learner ─▶ curves, compared

On the same build the digests are equal, bit for bit, so what a recording holds is what was trained.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bus.errors import CheckpointError, ConfigError, LearnerError
from bus.events import BatchFormed, CheckpointSaved, RunPlanned
from bus.payload_recording import PayloadRecording
from bus.recording import Row
from replay.train_report import Report, Step, Version
from replay.train_settings import changed
from services.learner.config import LearnerConfig
from services.learner.planned import planned_learner, planned_settings
from services.learner.protocol import Learner
from services.learner.redo import Redone, TrainedSteps, load_newest, redo
from services.learner.wire import published_digest
from services.places import checkpoint_folder
from services.samples import SampleGroup, unpack_group

logger = logging.getLogger(__name__)

INITIAL = Path("weights") / "initial"
"""Copy of the model that a run began with, in its folder."""

Follow = Callable[[Sequence[BatchFormed], str], Iterable[BatchFormed]]
"""(batches, what is done with them) -> the same batches, while somebody watches."""


def trained_steps(rows: Iterable[Row], folder: Path) -> TrainedSteps:
    """What the recorded run trained, from its rows of `redo.KINDS`. Raises ConfigError when it trained nothing, CodecError."""
    steps = TrainedSteps()
    for row in rows:
        steps.apply(row.entry().event)
    if steps.plan is None or not steps.publications:
        raise ConfigError(f"{folder} has no version 0: its run ended before it had begun to train")
    return steps


@dataclass(frozen=True)
class Retraining:
    """One recorded run, `folder` is its. `overrides`: settings of the learner to be changed, as `actor.name=value`."""

    folder: Path
    steps: TrainedSteps
    payloads: PayloadRecording
    follow: Follow
    overrides: Sequence[str] = ()

    @property
    def plan(self) -> RunPlanned:
        assert self.steps.plan is not None
        return self.steps.plan

    @property
    def model(self) -> Path | None:
        """The initial model: the copy in the run's folder, which belongs to the recording, if there is one."""
        copied = self.folder / INITIAL
        return copied if copied.is_dir() else None

    def run(self, first: int | None, last: int | None) -> tuple[Report, Learner]:
        """Trains from version `first` to version `last`, None for the first and the last that there are.

        The learner is at the end of it; the caller closes it.

        Raises ConfigError for versions and settings that cannot be, BlobMissing, LogError.
        """
        first, last = self._versions(first or 0, last)
        begin, end = self.steps.publications[first].step, self.steps.publications[last].step
        planned = planned_settings(self.plan)
        other = self._changed(planned)
        report = Report(first, last, self.overrides)
        learner = planned_learner(self.plan, _where_it_can(planned, other), self.model)
        try:
            at = self._start(learner, begin, report)
            if self._may_go_on(report):
                self._train(learner, at, end if other is None else begin, report)
            if other is not None and not report.error:
                learner = self._with_settings(learner, other)
                self._train(learner, begin, end, report, changed=True)
        except BaseException:
            learner.close()
            raise
        return report, learner

    def _versions(self, first: int, last: int | None) -> tuple[int, int]:
        known = self.steps.publications
        last = max(known) if last is None else last
        for option, version in (("--from-version", first), ("--to-version", last)):
            if version not in known:
                raise ConfigError(f"{option} {version}: the run published the versions {min(known)} to {max(known)}")
        if first >= last > 0:
            raise ConfigError(f"there is nothing to train from version {first} to version {last}")
        return first, last

    def _changed(self, planned: LearnerConfig | None) -> LearnerConfig | None:
        """The changed settings, None when there are none."""
        if not self.overrides:
            return None
        if planned is None:
            raise ConfigError("the run was scripted: its learner has no settings that could be changed")
        return changed(planned, self.overrides)

    def _start(self, learner: Learner, begin: int, report: Report) -> int:
        """Brings the learner as near to the step `begin` as a checkpoint can; returns the step it is at."""
        there = [saved for saved in self.steps.checkpoints if saved.step <= begin and self._is_there(saved)]
        saved = load_newest(learner, there, lambda uri: checkpoint_folder(uri, self.folder)) if begin > 0 else None
        at = 0 if saved is None else saved.step
        if saved is not None:
            report.start = f"the checkpoint of step {saved.step}"
        published = self.steps.published_after.get(at)
        if published is not None:
            now = published_digest(learner.weights(), published.dtype)
            report.versions.append(Version(published.version, at, published.digest, now, published.revision))
            learner.begin_cycle()
        return at

    def _is_there(self, saved: CheckpointSaved) -> bool:
        """A trainer keeps only the newest ones."""
        try:
            checkpoint_folder(saved.uri, self.folder)
        except CheckpointError:
            return False
        return True

    def _train(self, learner: Learner, after: int, last: int, report: Report, *, changed: bool = False) -> None:
        batches = self.steps.between(after, last)
        what = "training again" if not changed else "training with other settings"
        try:
            for redone in redo(learner, self.follow(batches, what), self.steps.published_after, self._groups):
                self._note(redone, report, changed=changed)
                if not self._may_go_on(report):
                    return
        except LearnerError as error:
            report.error = str(error)

    def _note(self, redone: Redone, report: Report, *, changed: bool) -> None:
        recorded = self.steps.metrics[redone.step]
        report.steps.append(Step(redone.step, recorded, dict(redone.report.metrics), changed))
        report.num_samples += len(self.steps.batches[redone.step].samples)
        if (published := redone.published) is not None and not changed:
            report.versions.append(Version(published.version, redone.step, published.digest, redone.digest, published.revision))

    def _may_go_on(self, report: Report) -> bool:
        """Everything after a difference differs, too; curves may be compared nevertheless."""
        return report.different is None or bool(self.overrides)

    def _with_settings(self, learner: Learner, settings: LearnerConfig) -> Learner:
        """A learner with other settings that goes on where `learner` is."""
        with tempfile.TemporaryDirectory(prefix="swingshift-") as folder:
            state = Path(folder) / "state"
            learner.save(state)
            learner.close()
            changed_learner = planned_learner(self.plan, settings, self.model)
            changed_learner.load(state)
        return changed_learner

    def _groups(self, batch: BatchFormed) -> list[SampleGroup]:
        return [unpack_group(self.payloads.get_ref(self.steps.payloads[sample])) for sample in batch.samples]


def _where_it_can(planned: LearnerConfig | None, other: LearnerConfig | None) -> LearnerConfig | None:
    """The run's settings, on the device and in as many ranks as is asked for. Raises ConfigError for what is not here."""
    if planned is None:
        return None
    wanted = planned if other is None else other
    there = torch.cuda.device_count() if wanted.device == "cuda" else wanted.ranks
    if there == 0:
        raise ConfigError(
            "the run was trained on cuda, which this machine does not have; the bits of a CPU are others, but the curves can be compared: "
            f"--set actor.device=cpu --set actor.dtype=float32{' --set actor.ranks=1' if wanted.ranks > 1 else ''}"
        )
    if there < wanted.ranks:
        raise ConfigError(
            f"the run was trained by {wanted.ranks} ranks, each on a GPU of its own, and this machine has {there}; fewer ranks sum in "
            f"another order, so the bits are others, but the curves can be compared: --set actor.ranks={there}"
        )
    elsewhere = {"device": wanted.device, "dtype": wanted.dtype} if wanted.device != planned.device else {}
    return planned.model_copy(update=elsewhere | {"ranks": wanted.ranks})
