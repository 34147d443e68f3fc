"""A run that goes on, in its parts: the lock, what may be set anew, and where a run that is gone back in is cut."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import BatchFormed, CheckpointSaved, Event, RunEnded, RunPlanned, SettingChanged, StepDone, StopRequested, WeightsPublished
from services.config_file import make_config, overridden
from services.launcher.fitting import check_here, copies_instead
from services.launcher.folders import write_info
from services.launcher.from_step import Cut, where_to_cut
from services.launcher.lock import RunLock
from services.launcher.past import KINDS, Past
from services.launcher.valid import refuse_without_checkpoint
from services.local_settings import check_local, local_settings, merged, with_local_settings
from services.reward_functions import reward_digest
from services.trainer.files import CheckpointFiles
from tests.bus.factories import plan, step_done


def test_a_run_has_one_supervisor_at_a_time(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(ConfigError, match=r"is active already, under process \d+ on"), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize("setting", ["supervisor.grace_s=3", "redis.memory_budget=1GiB", "model.path=/there", "devices=unpinned"])
def test_what_decides_nothing_may_be_set_anew(setting: str) -> None:
    check_local([setting])


@pytest.mark.parametrize("setting", ["rollout.n=4", "actor.lr=1", "devices=auto", "async_training.total_steps=7", "model.seed=1"])
def test_what_decides_is_not_changed_on_the_way(setting: str) -> None:
    with pytest.raises(ConfigError, match="a run goes on as it was planned"):
        check_local([setting])


def test_settings_of_earlier_restarts_stay_until_they_are_set_anew(tmp_path: Path) -> None:
    assert local_settings(tmp_path) == []
    write_info(tmp_path, "r", None, {}, merged(["model.path=/a", "supervisor.grace_s=3"], ["model.path=/b"]))
    assert local_settings(tmp_path) == ["model.path=/b", "supervisor.grace_s=3"]
    config = with_local_settings(make_config({}, "test"), tmp_path)
    assert (config.model.path, config.actor.model, config.supervisor.grace_s) == ("/b", "/b", 3)


def test_what_was_changed_on_the_live_run_is_known_where_it_goes_on() -> None:
    past = Past()
    planned = plan("r").model_copy(update={"num_validation": 2})
    changes = [SettingChanged(name="eval_every_versions", value=2), SettingChanged(name="on_redo_diverged", value="republish")]
    versions = [published(version) for version in range(4)]
    for position, event in enumerate((planned, *versions[:2], *changes, *versions[2:]), 1):
        assert event.kind in KINDS
        past.apply(Entry(position, "any", 1, False, 0, 0, "", event))
    assert past.plan == planned
    assert past.settings.plan == planned.model_copy(update={"eval_every_versions": 2, "on_redo_diverged": "republish"})
    assert [publication.version for publication in past.needed_versions()] == [2, 3], "version 2 is being evaluated"


def published(version: int) -> WeightsPublished:
    return WeightsPublished(version=version, revision=0, transport="file", uri=f"w{version}", digest="d", num_bytes=1, seconds=0.0)


class Story:
    """A past with checkpoints on the disk."""

    def __init__(self, folder: Path) -> None:
        self.past = Past()
        self.folder = folder
        self.add(plan("r").model_copy(update={"total_steps": 6}))

    def add(self, event: Event) -> int:
        position = self.past.position = self.past.position + 1
        self.past.apply(Entry(position, "trainer", 1, False, 0, 0, "", event))
        return position

    def step(self, number: int, *before_it_is_saved: Event, saves: bool = True) -> None:
        self.add(BatchFormed(step=number, samples=(number,), micro_batches=((0,),)))
        done = self.add(step_done(number))
        for event in before_it_is_saved:
            self.add(event)
        if saves:
            self.save(number, done)

    def save(self, number: int, done: int) -> None:
        path = self.folder / "checkpoints" / f"checkpoint-e1-s{number}"
        path.mkdir(parents=True)
        (path / "state.json").write_text(str(number))
        (path / "digests.json").write_text(json.dumps({"state.json": hashlib.sha256(str(number).encode()).hexdigest()}))
        self.add(CheckpointSaved(step=number, version=number, position=done, uri=f"file:///elsewhere/{path.name}", digest="", seconds=0.0))


def test_a_run_is_cut_behind_the_checkpoint_of_the_step(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.step(1)
    story.step(2)
    assert where_to_cut(story.past, tmp_path, 1) == Cut(4, None)


def test_what_later_steps_began_before_the_checkpoint_was_saved_is_left_out(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.step(1, BatchFormed(step=2, samples=(2,), micro_batches=((0,),)))
    cut = where_to_cut(story.past, tmp_path, 1)
    assert cut.position == 3
    assert cut.saved is not None
    assert (cut.saved.step, cut.saved.position) == (1, 3)


def test_a_torn_checkpoint_cannot_be_gone_back_to_and_the_whole_ones_are_named(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for step in (1, 2, 3):
        story.step(step)
    (tmp_path / "checkpoints" / "checkpoint-e1-s2" / "state.json").write_text("torn")
    with pytest.raises(ConfigError, match="step 2 of run r cannot be gone back to: its checkpoint is torn or gone; steps that can: 1, 3"):
        where_to_cut(story.past, tmp_path, 2)
    with pytest.raises(ConfigError, match="step 5 of run r cannot be gone back to: it has no checkpoint; steps that can: 1, 3"):
        where_to_cut(story.past, tmp_path, 5)


def test_a_run_whose_checkpoints_are_all_gone_is_not_started_before_one_is_back(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for step in (1, 2):
        story.step(step, published(step))
    shutil.rmtree(tmp_path / "checkpoints")
    refuse_without_checkpoint(story.past, tmp_path)  # all is still kept for a redo from the initial weights
    for step in (3, 4):
        story.step(step, published(step))
    refuse_without_checkpoint(story.past, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match=r"none of the checkpoints checkpoint-e1-s2, checkpoint-e1-s3, checkpoint-e1-s4 is in"):
        refuse_without_checkpoint(story.past, tmp_path)


def test_a_run_that_was_stopped_goes_on_from_before_it_was_asked_to(tmp_path: Path) -> None:
    """The batch that was in training then is trained again: in the new run nobody asks it to stop."""
    story = Story(tmp_path)
    story.step(1)
    story.add(BatchFormed(step=2, samples=(2,), micro_batches=((0,),)))
    asked = story.add(StopRequested(reason="interrupted"))
    done = story.add(step_done(2))
    story.add(RunEnded(reason="stopped"))
    story.save(2, done)
    assert where_to_cut(story.past, tmp_path, 2) == Cut(asked - 1, None)


def test_there_is_nothing_to_be_done_after_the_last_step(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for step in range(1, 7):
        story.step(step)
    with pytest.raises(ConfigError, match="step 6 is the last one of run r"):
        where_to_cut(story.past, tmp_path, 6)


def test_checkpoints_are_found_by_name_in_a_run_that_was_moved_and_a_lost_historys_gives_way(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path / "checkpoints")
    for step in (1, 2, 3):
        files.folder(1, step).mkdir()
    assert files.path("file:///elsewhere/checkpoints/checkpoint-e1-s2") == tmp_path / "checkpoints" / "checkpoint-e1-s2"
    (tmp_path / "checkpoints" / "checkpoint-e1-s3" / "old").touch()
    assert not files.folder(1, 3).exists()


def test_the_newest_publication_is_what_replicas_may_be_told_to_load() -> None:
    past = Past()
    past.apply(Entry(1, "supervisor", 0, False, 0, 0, "", plan("r")))
    assert past.needed_versions() == []
    assert isinstance(past.plan, RunPlanned)
    past.apply(Entry(2, "trainer", 1, False, 0, 0, "", StepDone.model_validate(step_done(1).model_dump())))
    assert past.steps_done == 1


SCRIPTED = {"model": {"path": "scripted"}, "rollout": {"engine": "scripted"}}


def test_a_run_is_not_started_where_its_cores_are_not_unless_it_is_bound_to_none() -> None:
    planned = plan("r").model_copy(update={"devices": {"trainer": "4093"}})
    with pytest.raises(ConfigError, match="on the cores 4093, which are not here: add --set devices=unpinned"):
        check_here(planned, make_config(SCRIPTED, "test"), print)
    check_here(planned, make_config({**SCRIPTED, "devices": "unpinned"}, "test"), print)


def test_what_is_gone_is_taken_from_the_recording_and_what_is_other_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    config = make_config({"model": {"path": "/gone"}, "data": {"task": "sorting", "reward": "/gone/mine.py:score"}}, "test")
    with pytest.raises(ConfigError, match=r"the initial model is not in /gone: say where it is with --set model\.path=FOLDER"):
        check_here(plan("r"), config, said.append)
    assert copies_instead(config, tmp_path, said.append) == []
    (tmp_path / "weights" / "initial").mkdir(parents=True)
    (tmp_path / "weights" / "initial" / "config.json").write_text("{}")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def score(): ...")
    settings = copies_instead(config, tmp_path, said.append)
    assert settings == [f"model.path={tmp_path}/weights/initial", f"data.reward={tmp_path}/code/mine.py:score"]
    assert len(said) == 2
    here = overridden(config, settings, "test")
    planned = plan("r").model_copy(update={"environment": {"reward_digest": reward_digest(tmp_path / "code" / "mine.py"), "torch": "0.1"}})
    check_here(planned, here, said.append)
    assert said[-1].startswith("torch is")
    (tmp_path / "code" / "mine.py").write_text("def score(): return 1")
    with pytest.raises(ConfigError, match="is not what the run was planned with"):
        check_here(planned, here, said.append)
