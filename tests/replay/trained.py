"""A recording of a run that trained a model, made without one: the learner itself, and entries about what it did."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from bus.blobs import blob_ref
from bus.entry import Draft
from bus.events import BatchFormed, CheckpointSaved, Event, RunPlanned, SampleReady, SampleStarted, StepDone, WeightsPublished
from bus.memory_log import MemoryStore
from bus.payload_recording import PayloadRecorder
from bus.recorder import Recorder
from services.config import RunConfig
from services.learner.config import LearnerConfig
from services.learner.digests import weights_digest
from services.learner.environment import environment
from services.learner.micro_batches import plan_micro_batches
from services.learner.planned import planned_learner, planned_settings
from services.learner.protocol import Learner
from services.samples import SampleGroup, pack_group
from tests.cases.runs import small_plan
from tests.services.learner.factories import make_batch

STEPS_OF_A_CYCLE = 2
BUDGET = 40


def plan_of(model: str, **actor: object) -> RunPlanned:
    """Four samples a step, two steps a cycle."""
    config = RunConfig.model_validate({"model": {"path": model}, "actor": {"num_threads": 1, "lr": 1e-3, **actor}})
    return small_plan(
        required_samples=4, trigger_parameter_sync_step=STEPS_OF_A_CYCLE,
        config=json.dumps(config.resolved()), environment=environment(config.actor),
    )  # fmt: skip


class Trained:
    """Writes the recording as the run goes on. `settings`: of the learner, where those of the plan cannot be had here."""

    def __init__(self, folder: Path, plan: RunPlanned, settings: LearnerConfig | None = None) -> None:
        self.folder = folder
        self.plan = plan
        self.store = MemoryStore.create(plan, 1)
        self.payloads: dict[str, bytes] = {}
        self.learner: Learner = planned_learner(plan, settings)
        self._publish(0)

    def train(self, last: int, checkpoints: tuple[int, ...] = ()) -> Trained:
        """Up to step `last`, with a checkpoint after some of the steps."""
        for step in range(self.learner.step + 1, last + 1):
            groups = make_batch(step)
            self._take(groups)
            split = tuple(tuple(part) for part in plan_micro_batches([group.num_tokens for group in groups], BUDGET))
            self.append(BatchFormed(step=step, samples=tuple(group.sample for group in groups), micro_batches=split))
            report = self.learner.train(step, groups, split)
            boundary = step % STEPS_OF_A_CYCLE == 0
            self.append(
                StepDone(
                    step=step, version=(step - 1) // STEPS_OF_A_CYCLE, is_boundary=boundary, num_samples=len(groups), seconds={},
                    metrics=dict(report.metrics),
                )
            )  # fmt: skip
            if boundary:
                self._publish(step // STEPS_OF_A_CYCLE)
            if step in checkpoints:
                self._save(step)
        return self

    def with_settings(self, **actor: object) -> Trained:
        """From here on with other settings than the plan says."""
        settings = planned_settings(self.plan)
        assert settings is not None
        other = planned_learner(self.plan, settings.model_copy(update=actor))
        with TemporaryDirectory() as folder:
            self.learner.save(Path(folder) / "state")
            other.load(Path(folder) / "state")
        self.learner = other
        return self

    def append(self, event: Event) -> None:
        self.store.write("trainer", 1, [Draft(event, derived=False, cause=0, at=1)])

    def record(self) -> Path:
        """Writes the recording; returns its folder."""
        with PayloadRecorder.open(self.folder) as payloads:
            payloads.put(self.payloads)
        with Recorder.open(self.folder, self.store.run, self.store.log_id) as recorder:
            recorder.append(self.store.entries)
        return self.folder

    def _take(self, groups: list[SampleGroup]) -> None:
        for group in groups:
            name, data = f"sample:{group.sample}", pack_group(group)
            self.payloads[name] = data
            self.append(SampleStarted(sample=group.sample, version=0))
            self.append(
                SampleReady(
                    sample=group.sample, num_tokens=group.num_tokens, oldest_version=0, newest_version=0, mean_reward=0.0,
                    blob=blob_ref(name, data),
                )
            )  # fmt: skip

    def _publish(self, version: int) -> None:
        self.learner.begin_cycle()
        digest = weights_digest(self.learner.weights())
        self.append(
            WeightsPublished(version=version, revision=0, transport="file", uri="file:///gone", digest=digest, num_bytes=1, seconds=0.0)
        )

    def _save(self, step: int) -> None:
        folder = self.folder / "checkpoints" / f"checkpoint-e1-s{step}"
        self.learner.save(folder)
        # As if the run's folder had been moved since.
        uri = f"file:///elsewhere/checkpoints/{folder.name}"
        self.append(
            CheckpointSaved(step=step, version=step // STEPS_OF_A_CYCLE, position=len(self.store.entries), uri=uri, digest="", seconds=0.0)
        )
