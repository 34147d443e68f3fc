"""Training again what a log says: from the newest checkpoint that can be read, with the versions it must come to."""

from __future__ import annotations

import shutil
from pathlib import Path

from bus.core import Request
from bus.entry import Draft, Entry
from bus.events import BatchFormed, CheckpointSaved, Event, SampleDropped, SampleReady, StepDone, WeightsPublished
from bus.memory_log import MemoryStore
from services.learner.planned import planned_learner
from services.learner.redo import TrainedSteps, load_newest, redo
from services.places import checkpoint_folder
from services.samples import SampleGroup, unpack_group
from services.trainer.core import Publish, TrainerCore
from tests.replay.trained import Trained, plan_of


def trained(folder: Path, steps: int, checkpoints: tuple[int, ...] = ()) -> tuple[Trained, TrainedSteps]:
    run = Trained(folder, plan_of("scripted")).train(steps, checkpoints)
    fold = TrainedSteps()
    for entry in run.store.entries:
        fold.apply(entry.event)
    return run, fold


def test_the_newest_checkpoint_that_can_be_read_and_the_steps_after_it_give_what_was_published(tmp_path: Path) -> None:
    run, fold = trained(tmp_path, 6, checkpoints=(2, 4))
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-e1-s4")
    learner = planned_learner(run.plan)
    saved = load_newest(learner, fold.checkpoints, lambda uri: checkpoint_folder(uri, tmp_path))
    assert saved is not None
    assert (saved.step, learner.step, fold.last_step) == (2, 2, 6)

    def groups(batch: BatchFormed) -> list[SampleGroup]:
        return [unpack_group(run.payloads[fold.payloads[sample].name]) for sample in batch.samples]

    redone = list(redo(learner, fold.between(saved.step, fold.last_step), fold.published_after, groups))
    assert [(each.step, each.published.version if each.published else None) for each in redone] == [(3, None), (4, 2), (5, None), (6, 3)]
    assert not any(each.differs for each in redone)


def test_without_a_readable_checkpoint_the_learner_stays_as_it_was(tmp_path: Path) -> None:
    run, fold = trained(tmp_path, 2, checkpoints=(2,))
    (tmp_path / "checkpoints" / "checkpoint-e1-s2" / "state.json").write_text("torn")
    learner = planned_learner(run.plan)
    assert load_newest(learner, fold.checkpoints, lambda uri: checkpoint_folder(uri, tmp_path)) is None
    assert learner.step == 0


def test_a_second_outcome_changes_nothing_and_a_batch_that_was_not_trained_is_no_step(tmp_path: Path) -> None:
    run, fold = trained(tmp_path, 2)
    ready = next(event for entry in run.store.entries if isinstance(event := entry.event, SampleReady))
    done = next(event for entry in run.store.entries if isinstance(event := entry.event, StepDone))
    before = (dict(fold.payloads), dict(fold.batches), dict(fold.metrics))
    for event in (ready.model_copy(update={"num_tokens": 1}), done, BatchFormed(step=3, samples=(3000,), micro_batches=((0,),))):
        fold.apply(event)
    assert (fold.payloads, fold.batches, fold.metrics) == before
    fold.apply(SampleDropped(sample=ready.sample, reason="stale"))
    assert ready.sample not in fold.payloads


def test_a_version_that_a_restarted_trainer_published_again_keeps_its_step_and_the_next_one_stays_due() -> None:
    """The redo after step 4 found other weights for version 1: it is published again, and version 2 is still to be published."""
    plan = plan_of("scripted")
    store, core = MemoryStore.create(plan, 1), TrainerCore()

    def take(*events: Event) -> list[Request]:
        for event in events:
            store.write("trainer", 1, [Draft(event, derived=False, cause=0, at=1)])
            core.apply(Entry(*store.entries[-1]))
        return list(core.outstanding())

    def published(version: int, revision: int) -> WeightsPublished:
        return WeightsPublished(
            version=version, revision=revision, transport="file", uri="file:///w", digest=f"{revision}", num_bytes=1, seconds=0.0
        )

    def step(number: int) -> list[Event]:
        batch = BatchFormed(step=number, samples=(number,), micro_batches=((0,),))
        done = StepDone(step=number, version=0, is_boundary=number % 2 == 0, num_samples=1, seconds={}, metrics={})
        return [batch, done]

    core.apply(store.entries[0])
    take(published(0, 0), *step(1), *step(2), published(1, 0), *step(3), *step(4))
    due = take(published(1, 1))
    assert core.publications[1][0] == 2
    assert core.publications[1][1].revision == 1
    assert [request.version for request in due if isinstance(request, Publish)] == [2]
    saved = CheckpointSaved(step=4, version=2, position=1, uri="file:///c", digest="", seconds=0.0)
    assert not [request for request in take(published(2, 0), saved) if isinstance(request, Publish)]
