"""What a configuration means for weights on their way to the replicas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.config import RunConfig
from services.config_file import make_config
from services.weights.settings import published_dtype, wire_dtype


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "dtype": "bfloat16"}))
    return tmp_path


def config(model: Path, weights: str, trained: str, served: str | None) -> RunConfig:
    kwargs = {} if served is None else {"dtype": served}
    actor = {"dtype": trained, "device": "cuda"}
    data = {"model": {"path": str(model)}, "actor": actor, "rollout": {"engine_kwargs": kwargs}, "weights": {"dtype": weights}}
    return RunConfig.model_validate(data)


@pytest.mark.parametrize(
    ("weights", "trained", "served", "expected"),
    [
        ("auto", "bfloat16", "bfloat16", "bfloat16"),
        ("auto", "bfloat16", None, "bfloat16"),
        ("auto", "bfloat16", "float32", "float32"),
        ("auto", "float32", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32", "bfloat16"),
        ("float32", "bfloat16", "bfloat16", "float32"),
    ],
)
def test_weights_are_rounded_by_themselves_only_where_both_sides_compute_so(
    model: Path, weights: str, trained: str, served: str | None, expected: str
) -> None:
    assert wire_dtype(config(model, weights, trained, served)) == expected


def test_a_plan_of_an_older_version_says_nothing_and_means_the_trained_weights(model: Path) -> None:
    assert published_dtype(config(model, "auto", "bfloat16", "bfloat16")) == ""
    assert published_dtype(config(model, "float32", "bfloat16", "bfloat16")) == ""
    assert published_dtype(config(model, "bfloat16", "bfloat16", "bfloat16")) == "bfloat16"


@pytest.mark.parametrize(("written", "meant"), [(True, "on"), (False, "off"), ("on", "on"), ("auto", "auto")])
def test_on_and_off_are_what_yaml_makes_of_them(written: object, meant: str) -> None:
    assert make_config({"weights": {"delta": written}}, "test").weights.delta == meant
