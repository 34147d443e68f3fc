"""Payloads on the server: none that somebody may still read is called dead, and none is left behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bus.entry import Entry
from bus.evaluations import number_of
from bus.events import (
    BatchFormed,
    BlobRef,
    CheckpointSaved,
    EvalDone,
    EvalRequested,
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaLost,
    RunEnded,
    SampleDropped,
    SampleReady,
    SampleStarted,
    StepDone,
    WeightsPublished,
)
from bus.requests import Requests
from services.archiver.payload_lives import PayloadLives
from services.payloads import answer_blob, requested_prompt_blob, sample_blob
from services.trainer.core import TrainerCore
from services.trainer.kept import KEPT_CHECKPOINTS
from tests.simulation.world import World

REF = BlobRef(name="x", num_bytes=1, digest="0" * 32)


class Story:
    """A fold that is told a log; `dead` are the names that it has given."""

    def __init__(self) -> None:
        self.lives = PayloadLives()
        self.position = 0

    def tell(self, *events: Event) -> list[str]:
        dead: list[str] = []
        for event in events:
            self.position += 1
            dead += self.lives.apply(Entry(self.position, "x", 1, False, 0, 0, "", event))
        return dead


def asked(sample: int, answer: int, attempt: int = 1, replica: str = "s0", evaluates: int | None = None) -> GenerationRequested:
    request = f"{sample}.{answer}" if evaluates is None else f"eval-{evaluates}-{sample}.{answer}"
    number = sample if evaluates is None else number_of(sample)
    return GenerationRequested(
        request=request, attempt=attempt, replica=replica, epoch=1, swing=0, sample=number, answer=answer, max_new_tokens=8,
        evaluates=evaluates,
    )  # fmt: skip


def answered(sample: int, answer: int, attempt: int = 1, evaluates: int | None = None) -> GenerationFinished:
    request = asked(sample, answer, evaluates=evaluates).request
    return GenerationFinished(
        request=request, attempt=attempt, replica="s0", outcome="stop", num_tokens=1, version_spans=((0, 1),), blob=REF
    )


def ready(sample: int) -> SampleReady:
    return SampleReady(sample=sample, num_tokens=1, oldest_version=0, newest_version=0, mean_reward=0.0, blob=REF)


def saved(step: int) -> CheckpointSaved:
    return CheckpointSaved(step=step, version=step, position=step, uri=f"file:///{step}", digest="", seconds=0.0)


def done(step: int) -> StepDone:
    return StepDone(step=step, version=0, is_boundary=True, num_samples=1, seconds={}, metrics={})


def published(step: int) -> tuple[StepDone, WeightsPublished]:
    """After a step, as the version of its number."""
    weights = WeightsPublished(version=step, revision=0, transport="file", uri=f"file:///w{step}", digest="", num_bytes=1, seconds=0.0)
    return done(step), weights


def batch(step: int, *samples: int) -> BatchFormed:
    return BatchFormed(step=step, samples=samples, micro_batches=(tuple(range(len(samples))),))


def test_prompt_and_answers_die_when_the_sample_is_ready() -> None:
    story = Story()
    assert story.tell(SampleStarted(sample=3, version=0), asked(3, 0), asked(3, 1), answered(3, 0), answered(3, 1)) == []
    assert story.tell(ready(3)) == ["prompt:3", "answer:3.0.1", "answer:3.1.1"]
    assert list(story.lives.live()) == ["sample:3"]


def test_every_attempt_goes_also_that_of_a_replica_that_was_killed_before_it_could_tell() -> None:
    story = Story()
    story.tell(SampleStarted(sample=3, version=0), asked(3, 0), ReplicaLost(replica="s0", epoch=1), asked(3, 0, attempt=2, replica="s1"))
    story.tell(answered(3, 0, attempt=2))
    assert story.tell(ready(3)) == ["prompt:3", "answer:3.0.1", "answer:3.0.2"]


def test_while_a_replica_works_on_a_dropped_sample_its_prompt_stays() -> None:
    story = Story()
    story.tell(SampleStarted(sample=3, version=0), asked(3, 0), asked(3, 1), answered(3, 1))
    assert story.tell(SampleDropped(sample=3, reason="failed")) == ["sample:3"]
    assert story.tell(answered(3, 0)) == ["prompt:3", "answer:3.0.1", "answer:3.1.1"]
    assert list(story.lives.live()) == []


def test_an_evaluations_payloads_die_with_it_once_nobody_works_on_it() -> None:
    story = Story()
    story.tell(
        EvalRequested(version=2, replica="s0", epoch=1), asked(0, 0, evaluates=2), asked(1, 0, evaluates=2), answered(0, 0, evaluates=2)
    )
    assert story.tell(EvalDone(version=2, num_prompts=1, partial=True, metrics={})) == []
    dead = story.tell(answered(1, 0, evaluates=2))
    assert dead == ["prompt:eval-2-0", "answer:eval-2-0.0.1", "prompt:eval-2-1", "answer:eval-2-1.0.1"]


def test_a_sample_dies_when_it_is_dropped_or_when_no_redo_can_need_it() -> None:
    story = Story()
    story.tell(*(event for sample in range(5) for event in (SampleStarted(sample=sample, version=0), ready(sample))))
    assert story.tell(SampleDropped(sample=4, reason="stale")) == ["sample:4"]
    batches = (batch(1, 0, 1), batch(2, 2), batch(3, 3))
    assert story.tell(*batches, *published(1), saved(1), *published(2), saved(2), *published(3)) == []
    assert story.tell(saved(3)) == ["sample:0", "sample:1"]
    assert story.tell(*published(4), saved(4)) == ["sample:2"]


def test_samples_that_the_published_weights_may_be_made_of_again_outlive_checkpoints_within_the_cycle() -> None:
    story = Story()
    story.tell(*(event for sample in range(3) for event in (SampleStarted(sample=sample, version=0), ready(sample))))
    story.tell(*published(0), *(event for step in range(1, 4) for event in (batch(step, step - 1), done(step), saved(step))))
    assert list(story.lives.live()) == ["sample:0", "sample:1", "sample:2"]
    assert story.tell(*published(3)) == ["sample:0"]


def test_a_second_outcome_of_a_sample_changes_nothing() -> None:
    story = Story()
    steps = range(1, KEPT_CHECKPOINTS + 1)
    story.tell(SampleStarted(sample=0, version=0), ready(0), batch(1, 0), *(saved(step) for step in steps), *published(steps[-1]))
    assert story.tell(ready(0)) == []
    assert list(story.lives.live()) == []
    assert story.lives.floor is None


def names_of(entry: Entry) -> list[str]:
    """What somebody needs on the server from this entry on: a prompt, an answer, a sample."""
    match entry.event:
        case GenerationRequested() as event:
            return [requested_prompt_blob(event), *([event.prefix.name] if event.prefix is not None else [])]
        case GenerationFinished(blob=BlobRef(name=name)) | SampleReady(blob=BlobRef(name=name)):
            return [name]
        case _:
            return []


def written(entries: Sequence[Entry]) -> dict[str, None]:
    """Every payload that may have been written, named as its writers name it."""
    found: dict[str, None] = {}
    for entry in entries:
        match entry.event:
            case GenerationRequested() as event:
                found.update(dict.fromkeys((requested_prompt_blob(event), answer_blob(event.request, event.attempt))))
            case SampleReady() as event:
                found[sample_blob(event.sample)] = None
            case _:
                pass
    return found


@pytest.fixture(scope="module")
def logs() -> list[list[Entry]]:
    """Simulated runs in which everything is killed, delayed, dropped and evaluated."""
    worlds = [World(seed) for seed in range(60)]
    for world in worlds:
        world.run()
    return [world.store.entries for world in worlds]


def test_in_simulated_runs_nothing_is_asked_for_after_it_was_called_dead(logs: list[list[Entry]]) -> None:
    for entries in logs:
        lives, dead, trainer = PayloadLives(), dict[str, int](), TrainerCore()
        for entry in entries:
            trainer.apply(entry)
            for name in names_of(entry):
                assert name not in dead, f"{entry.event!r} at {entry.position}: {name} was called dead at {dead[name]}"
            dead.update(dict.fromkeys(lives.apply(entry), entry.position))
            redo = [sample for formed in trainer.history for sample in formed.samples] if trainer.kept.saved else []
            assert not [sample for sample in (*trainer.books.ready, *redo) if sample_blob(sample) in dead]


def test_in_simulated_runs_every_payload_is_dead_or_alive_at_the_end_and_the_living_ones_are_few(logs: list[list[Entry]]) -> None:
    for entries in logs:
        lives, dead, requests = PayloadLives(), dict[str, None](), Requests()
        for entry in entries:
            dead.update(dict.fromkeys(lives.apply(entry)))
            requests.apply(entry)
        left = [name for name in written(entries) if name not in dead]
        assert set(left) <= set(lives.live())
        assert isinstance(next(entry.event for entry in reversed(entries) if isinstance(entry.event, RunEnded)), RunEnded)


def test_a_successor_that_begins_at_the_floor_comes_to_the_same(logs: list[list[Entry]]) -> None:
    rare = ("CheckpointSaved", "StepDone", "WeightsPublished", "ReplicaLost", "ServiceStarted", "BatchFormed")
    for entries in logs[:30]:
        lives = PayloadLives()
        for entry in entries:
            lives.apply(entry)
            if entry.position % 37:
                continue
            floor = entry.position if lives.floor is None else lives.floor
            successor = PayloadLives()
            for past in entries[: entry.position]:
                if past.position > floor or past.event.kind in rare:
                    successor.apply(past)
            assert sorted(successor.live()) == sorted(lives.live())
