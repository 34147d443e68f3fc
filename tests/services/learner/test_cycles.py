"""π_old of `recompute` is that of the weights a cycle began with: in each of its steps, and after a restart in its middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bus.errors import CheckpointError
from services.learner.checkpoint import read_checkpoint, write_checkpoint
from services.learner.digests import weights_digest
from services.learner.protocol import Learner
from services.learner.scripted import ScriptedLearner
from tests.services.learner.test_hf import make_learner, train


def make_recomputing(model: Path) -> Learner:
    return make_learner(model, old_logprobs="recompute", lr=2e-3, use_kl_loss=True, kl_loss_coef=0.1)


def make_scripted(_model: Path) -> Learner:
    return ScriptedLearner()


MAKERS = pytest.mark.parametrize("make", [make_recomputing, make_scripted])


def cycle(learner: Learner, first: int, last: int) -> None:
    learner.begin_cycle()
    for step in range(first, last + 1):
        train(learner, step)


def test_a_cycle_begins_with_the_weights_themselves_and_goes_on_against_them(tiny_model: Path) -> None:
    learner = make_learner(tiny_model, old_logprobs="recompute", lr=2e-3)
    assert train(learner, 1).metrics["actor/ppo_kl"] == 0.0
    second, third = train(learner, 2).metrics, train(learner, 3).metrics
    assert second["actor/ratio_mean"] != 1.0
    assert third["actor/clip_fraction"] > second["actor/clip_fraction"] > 0.0
    learner.begin_cycle()
    assert train(learner, 4).metrics["actor/ppo_kl"] == 0.0


def test_a_cycle_of_one_step_is_on_its_own_policy_every_time(tiny_model: Path) -> None:
    learner = make_learner(tiny_model, old_logprobs="recompute", lr=2e-3)
    for step in (1, 2, 3):
        learner.begin_cycle()
        learner.begin_cycle()
        assert train(learner, step).metrics["actor/ratio_mean"] == 1.0


@MAKERS
def test_where_a_cycle_begins_changes_the_weights(make: Callable[[Path], Learner], tiny_model: Path) -> None:
    one, two = make(tiny_model), make(tiny_model)
    cycle(one, 1, 4)
    cycle(two, 1, 2)
    cycle(two, 3, 4)
    assert weights_digest(one.weights()) != weights_digest(two.weights())


@MAKERS
@pytest.mark.parametrize("saved_after", [2, 3])
def test_a_restart_at_or_after_the_start_of_a_cycle_gives_the_same_bits(
    make: Callable[[Path], Learner], saved_after: int, tiny_model: Path, tmp_path: Path
) -> None:
    straight, first = make(tiny_model), make(tiny_model)
    cycle(straight, 1, 2)
    cycle(straight, 3, 5)
    cycle(first, 1, 2)
    first.begin_cycle()
    if saved_after == 3:
        train(first, 3)
    first.save(tmp_path / "saved")
    resumed = make(tiny_model)
    resumed.load(tmp_path / "saved")
    for step in range(saved_after + 1, 6):
        train(resumed, step)
    assert weights_digest(resumed.weights()) == weights_digest(straight.weights())
    resumed.begin_cycle()
    straight.begin_cycle()
    assert train(resumed, 6).metrics == train(straight, 6).metrics


def test_only_a_checkpoint_within_a_cycle_carries_its_start(tiny_model: Path, tmp_path: Path) -> None:
    learner = make_recomputing(tiny_model)
    cycle(learner, 1, 2)
    learner.save(tmp_path / "within")
    learner.begin_cycle()
    learner.save(tmp_path / "start")
    assert set(read_checkpoint(tmp_path / "within").parts) == {"model", "optimizer", "cycle_start"}
    assert set(read_checkpoint(tmp_path / "start").parts) == {"model", "optimizer"}


@pytest.mark.parametrize(
    ("shape", "words"), [("none", "no cycle_start.safetensors"), ("other", "cycle_start.safetensors is of another model")]
)
def test_a_checkpoint_that_lacks_the_cycles_start_is_refused_and_nothing_is_loaded(
    shape: str, words: str, tiny_model: Path, tmp_path: Path
) -> None:
    learner, fresh = make_recomputing(tiny_model), make_recomputing(tiny_model)
    cycle(learner, 1, 2)
    learner.save(tmp_path / "whole")
    whole = read_checkpoint(tmp_path / "whole")
    parts = {name: tensors for name, tensors in whole.parts.items() if name != "cycle_start"}
    if shape == "other":
        parts["cycle_start"] = {"model.norm.weight": whole.part("model")["model.norm.weight"]}
    write_checkpoint(tmp_path / "damaged", whole.state, parts)
    before = weights_digest(fresh.weights())
    with pytest.raises(CheckpointError, match=words):
        fresh.load(tmp_path / "damaged")
    assert (weights_digest(fresh.weights()), fresh.step) == (before, 0)


def test_what_was_kept_is_as_it_was_after_an_offload(tiny_model: Path) -> None:
    learner, twin = make_recomputing(tiny_model), make_recomputing(tiny_model)
    cycle(learner, 1, 2)
    cycle(twin, 1, 2)
    learner.offload()
    learner.reload()
    assert train(learner, 3).metrics == train(twin, 3).metrics


def test_a_checkpoint_from_before_cycles_were_kept_is_the_start_of_one(tiny_model: Path, tmp_path: Path) -> None:
    learner = make_recomputing(tiny_model)
    cycle(learner, 1, 2)
    learner.begin_cycle()
    learner.save(tmp_path / "new")
    new = read_checkpoint(tmp_path / "new")
    write_checkpoint(tmp_path / "old", {name: value for name, value in new.state.items() if name != "cycle_step"}, new.parts)
    resumed = make_recomputing(tiny_model)
    resumed.load(tmp_path / "old")
    assert train(resumed, 3).metrics == train(learner, 3).metrics
