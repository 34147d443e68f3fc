"""The model made on the spot: a Hugging Face folder, and a warm start that teaches and repeats itself exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from bus.errors import ConfigError
from services.tasks.model import ModelShape, WarmStart, make_model, prepare_model, warm_start
from services.tasks.sorting import SortingTask

TASK = SortingTask(min_digits=4, max_digits=8)
SHAPE = ModelShape(hidden_size=32, intermediate_size=64)
SHORT = WarmStart(steps=6, batch=16)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_folder_is_a_complete_hugging_face_model_of_the_tasks_vocabulary(tmp_path: Path) -> None:
    make_model(tmp_path, TASK, SHAPE, seed=1)
    loaded: object = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True, output_loading_info=True)
    model, loading = cast(tuple[PreTrainedModel, dict[str, set[str]]], loaded)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert (model.config.model_type, model.config.vocab_size, model.config.eos_token_id) == ("qwen2", 16, TASK.special.eos)
    assert model.config.max_position_embeddings >= TASK.max_prompt_length + TASK.max_response_length


def test_the_seed_alone_decides_the_first_weights_and_no_other_random_number_is_used_up(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(3)
        before = torch.get_rng_state()
        make_model(tmp_path / name, TASK, SHAPE, seed)
        assert torch.equal(torch.get_rng_state(), before)
    assert equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not equal(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_a_warm_start_gives_the_same_bits_again_and_leaves_the_number_of_threads(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    for name in ("a", "b"):
        make_model(tmp_path / name, TASK, SHAPE, seed=1)
        warm_start(tmp_path / name, TASK, SHORT)
    assert torch.get_num_threads() == threads
    assert equal(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_a_warm_start_teaches_and_reports_every_step(tmp_path: Path) -> None:
    make_model(tmp_path, TASK, SHAPE, seed=1)
    told: list[tuple[int, int, float]] = []
    loss = warm_start(
        tmp_path, TASK, replace(SHORT, steps=60, lr_warmup_steps=5), lambda done, total, loss: told.append((done, total, loss))
    )
    assert [(done, total) for done, total, _ in told] == [(done, 60) for done in range(1, 61)]
    assert told[0][2] == pytest.approx(math.log(TASK.vocab_size), abs=0.3)
    assert loss == pytest.approx(sum(loss for *_, loss in told[-6:]) / 6)
    assert loss < told[0][2] - 0.4


def test_a_prepared_model_is_made_once_per_configuration(tmp_path: Path) -> None:
    calls: list[int] = []

    def count(done: int, total: int, loss: float) -> None:
        calls.append(done)

    first = prepare_model(tmp_path, TASK, SHAPE, SHORT, count)
    assert len(calls) == SHORT.steps
    assert prepare_model(tmp_path, TASK, SHAPE, SHORT, count) == first
    assert len(calls) == SHORT.steps
    others = [
        prepare_model(tmp_path, TASK, SHAPE, replace(SHORT, seed=1)),
        prepare_model(tmp_path, TASK, SHAPE, replace(SHORT, steps=5)),
        prepare_model(tmp_path, TASK, replace(SHAPE, num_layers=1), SHORT),
        prepare_model(tmp_path, replace(TASK, carelessness=0.5), SHAPE, SHORT),
    ]
    assert len({first, *others}) == 5
    assert all(len(weights(folder)) > 0 for folder in others)


def test_a_preparation_that_was_interrupted_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_model(tmp_path, TASK, SHAPE, SHORT, interrupt)
    assert list(tmp_path.iterdir()) == []
    folder = prepare_model(tmp_path, TASK, SHAPE, SHORT)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_shape_whose_heads_do_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="hidden size 30, 4 heads and 2 key-value heads"):
        ModelShape(hidden_size=30)
