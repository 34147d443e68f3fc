"""Which checkpoints a trainer keeps: whatever an operator asks for, the newest published weights can be made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bus.events import CheckpointSaved, StepDone, WeightsPublished
from services.trainer.files import CheckpointFiles
from services.trainer.kept import KeptCheckpoints


class Story:
    """A fold that is told of steps."""

    def __init__(self) -> None:
        self.kept = KeptCheckpoints()
        self._step = self._version = 0
        self._publish()

    def step(self, *, boundary: bool = False) -> None:
        """One more, with a checkpoint; at a boundary a version is published before that."""
        self._step += 1
        self.kept.apply(StepDone(step=self._step, version=0, is_boundary=boundary, num_samples=1, seconds={}, metrics={}))
        if boundary:
            self._version += 1
            self._publish()
        self.save(1)

    def save(self, epoch: int) -> None:
        """The state after the newest step is saved by this incarnation."""
        uri = f"file:///checkpoint-e{epoch}-s{self._step}"
        self.kept.apply(CheckpointSaved(step=self._step, version=self._version, position=1, uri=uri, digest="", seconds=0.0))

    def _publish(self) -> None:
        self.kept.apply(WeightsPublished(version=self._version, revision=0, transport="shm", uri="w", digest="", num_bytes=1, seconds=0.0))

    @property
    def steps(self) -> list[int]:
        return [saved.step for saved in self.kept.saved]


def test_of_those_at_boundaries_the_newest_three_are_kept() -> None:
    story = Story()
    for _ in range(5):
        story.step(boundary=True)
    assert story.steps == [3, 4, 5]
    assert story.kept.oldest == story.kept.saved[0]


def test_those_within_a_cycle_push_out_none_that_the_published_weights_can_be_made_again_from() -> None:
    story = Story()
    for _ in range(3):
        story.step(boundary=True)
    for _ in range(5):
        story.step()
    assert story.steps == [1, 2, 3, 6, 7, 8]
    story.step(boundary=True)
    assert story.steps == [7, 8, 9], "a newer version is out"


def test_as_long_as_the_published_weights_are_older_than_every_checkpoint_all_batches_are_needed() -> None:
    story = Story()
    for _ in range(5):
        story.step()
    assert story.steps == [3, 4, 5]
    assert story.kept.oldest is None


@pytest.mark.parametrize(("second", "steps"), [(1, [1]), (2, [1, 1])])
def test_two_of_one_step_are_one_where_they_lie_in_one_folder(second: int, steps: list[int]) -> None:
    story = Story()
    story.step(boundary=True)
    story.save(second)
    assert story.steps == steps


def test_what_is_not_kept_is_removed_but_nothing_newer(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path)
    for step in range(1, 8):
        path = files.folder(1, step)
        path.mkdir()
        os.utime(path, (step, step))
    files.keep({f"file:///elsewhere/checkpoint-e1-s{step}" for step in (2, 5, 6)})
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"checkpoint-e1-s{step}" for step in (2, 5, 6, 7)]
