"""A resumed learner goes on bit for bit, and a checkpoint that is not whole is refused by the name of its file."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.errors import CheckpointError
from services.learner.checkpoint import read_checkpoint, remove_partial_checkpoints
from services.learner.digests import weights_digest
from services.learner.protocol import Learner
from services.learner.scripted import ScriptedLearner
from tests.services.learner.factories import save_tiny_qwen2
from tests.services.learner.test_hf import make_learner, train

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "digests.json")


def make_scripted(_model: Path) -> Learner:
    return ScriptedLearner()


def make_scheduled(model: Path) -> Learner:
    return make_learner(model, lr_schedule="cosine", lr_warmup_steps=2)


@pytest.fixture
def checkpoint(tiny_model: Path, tmp_path: Path) -> Path:
    learner = make_learner(tiny_model)
    train(learner, 1)
    learner.save(tmp_path / "step-1")
    return tmp_path / "step-1"


@pytest.mark.parametrize("make", [make_scheduled, make_scripted])
def test_two_steps_save_load_and_two_more_equal_four_bit_for_bit(make: Callable[[Path], Learner], tiny_model: Path, tmp_path: Path) -> None:
    straight, first = make(tiny_model), make(tiny_model)
    expected = [train(straight, step).metrics for step in (1, 2, 3, 4)]
    assert [train(first, step).metrics for step in (1, 2)] == expected[:2]
    first.save(tmp_path / "step-2")
    resumed = make(tiny_model)
    resumed.load(tmp_path / "step-2")
    assert resumed.step == 2
    assert [train(resumed, step).metrics for step in (3, 4)] == expected[2:]
    assert weights_digest(resumed.weights()) == weights_digest(straight.weights())
    resumed.save(tmp_path / "resumed")
    straight.save(tmp_path / "straight")
    for name in sorted(path.name for path in (tmp_path / "resumed").iterdir()):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_going_back_from_a_later_step_equals_never_having_gone_there(tiny_model: Path, checkpoint: Path) -> None:
    wandered, straight = make_learner(tiny_model), make_learner(tiny_model)
    for step in (1, 2, 3):
        train(wandered, step, seed=90 + step)
    wandered.load(checkpoint)
    straight.load(checkpoint)
    assert train(wandered, 2).metrics == train(straight, 2).metrics
    assert weights_digest(wandered.weights()) == weights_digest(straight.weights())


def test_a_checkpoint_before_the_first_step_restores_the_initial_state(tiny_model: Path, tmp_path: Path) -> None:
    learner, fresh = make_learner(tiny_model), make_learner(tiny_model)
    fresh.save(tmp_path / "step-0")
    train(learner, 1)
    learner.load(tmp_path / "step-0")
    assert learner.step == 0
    assert train(learner, 1).metrics == train(fresh, 1).metrics


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named_and_nothing_is_loaded(name: str, checkpoint: Path, tiny_model: Path) -> None:
    path = checkpoint / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    learner = make_learner(tiny_model)
    before = weights_digest(learner.weights())
    with pytest.raises(CheckpointError, match=rf"{name} is torn"):
        learner.load(checkpoint)
    assert (weights_digest(learner.weights()), learner.step) == (before, 0)


@pytest.mark.parametrize("name", FILES[:3])
def test_one_changed_byte_is_found(name: str, checkpoint: Path, tiny_model: Path) -> None:
    content = bytearray((checkpoint / name).read_bytes())
    content[-3] ^= 1
    (checkpoint / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} is torn"):
        make_learner(tiny_model).load(checkpoint)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, checkpoint: Path, tiny_model: Path) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        make_learner(tiny_model).load(checkpoint)


def test_a_folder_that_is_not_there_is_named(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        make_learner(tiny_model).load(tmp_path / "nowhere")


def test_a_checkpoint_of_another_model_names_the_first_difference(checkpoint: Path, tmp_path: Path) -> None:
    other = make_learner(save_tiny_qwen2(tmp_path / "other", hidden_size=64))
    with pytest.raises(CheckpointError, match=r"model\.safetensors has model\.embed_tokens\.weight with shape \[16, 128\].*\[16, 64\]"):
        other.load(checkpoint)


def test_a_checkpoint_of_another_kind_of_learner_is_refused(tiny_model: Path, tmp_path: Path, checkpoint: Path) -> None:
    scripted = ScriptedLearner()
    scripted.save(tmp_path / "scripted")
    with pytest.raises(CheckpointError, match=r"state\.json.*scripted-1.*expected.*hf-1"):
        make_learner(tiny_model).load(tmp_path / "scripted")
    with pytest.raises(CheckpointError, match=r"expected.*scripted-1"):
        scripted.load(checkpoint)


def test_a_checkpoint_is_never_overwritten(tiny_model: Path, checkpoint: Path) -> None:
    before = (checkpoint / "digests.json").read_bytes()
    with pytest.raises(CheckpointError, match="exists"):
        make_learner(tiny_model).save(checkpoint)
    assert (checkpoint / "digests.json").read_bytes() == before


def test_a_save_that_runs_out_of_room_leaves_nothing_behind(tiny_model: Path, tmp_path: Path) -> None:
    learner = make_learner(tiny_model)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*bytes are free"):
            learner.save(tmp_path / "step-0")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_and_whole_checkpoints_stay(checkpoint: Path) -> None:
    leftover = checkpoint.parent / ".step-2.partial-abc"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    assert remove_partial_checkpoints(checkpoint.parent) == [leftover]
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_state_names_the_step_and_what_bits_depend_on(checkpoint: Path) -> None:
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["step"] == 1
    assert state["layout"] == "packed"
    assert read_checkpoint(checkpoint).step("hf-1") == 1
