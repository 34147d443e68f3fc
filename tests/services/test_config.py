"""The configuration: what is known, what is refused and how it is told, and that a plan carries it whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.config import RunConfig, ShapeConfig, WarmStartConfig
from services.config_file import OTHER_NAMES, load_config
from services.config_reference import names

Load = Callable[..., RunConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a configuration from its text."""

    def from_text(text: str, *overrides: str) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return load_config(path, overrides)

    return from_text


def complaint(load: Load, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return str(caught.value)


def test_an_empty_file_is_the_defaults(load: Load) -> None:
    assert load("") == RunConfig()


def test_sections_and_overrides_are_taken(load: Load) -> None:
    config = load(
        "async_training: {total_steps: 3}\nrollout: {n: 4}\n", "rollout.n=2", "policy.params.deactivate_ratio=0.6", "actor.lr=1e-3"
    )
    assert (config.async_training.total_steps, config.rollout.n, config.actor.lr) == (3, 2, 1e-3)
    assert config.policy.params == {"deactivate_ratio": 0.6}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("null", None), ("~", None), ("7", 7)],
)
def test_an_override_has_the_type_that_yaml_gives_it(load: Load, value: str, wanted: int | None) -> None:
    assert load("async_training: {num_prompts: 5}", f"async_training.num_prompts={value}").async_training.num_prompts == wanted


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "async_training.stalenes_threshold=1",
            "async_training.stalenes_threshold is no setting: did you mean async_training.staleness_threshold?",
        ),
        ("staleness_threshold=1", "staleness_threshold is no setting: did you mean async_training.staleness_threshold?"),
        ("rollout.nn=1", "rollout.nn is no setting: did you mean rollout.n?"),
        ("rolout.n=1", "rolout is no setting: did you mean rollout?"),
        ("actor.batch_size=1", "actor.batch_size is no setting: did you mean async_training.ppo_mini_batch_size?"),
        ("deadlines.kil_s=1", "deadlines.kil_s is no setting: did you mean deadlines.kill_s?"),
        ("model.warm_start.step=1", "model.warm_start.step is no setting: did you mean model.warm_start.steps?"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one_with_its_path(load: Load, override: str, words: str) -> None:
    assert words in complaint(load, "", override)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.n=0", "rollout.n is 0, it must be at least 1"),
        ("rollout.top_p=1.5", "rollout.top_p is 1.5, it must be at most 1"),
        ("deadlines.kill_s=0", "deadlines.kill_s is 0, it must be above 0"),
        ("actor.clip_low=1", "actor.clip_low is 1, it must be below 1"),
        ("rollout.engine=sglang", "rollout.engine is 'sglang', it must be 'embedded', 'scripted' or 'vllm'"),
        ("rollout=3", "rollout is 3, it must be a section"),
        ("policy.params.deactivate_ratio=[1]", "policy.params.deactivate_ratio is [1], it must be a word, a number"),
        ("async_training.staleness_threshold=.inf", "async_training.staleness_threshold is inf"),
    ],
)
def test_a_value_outside_its_limits_is_told_with_both_values(load: Load, override: str, words: str) -> None:
    assert words in complaint(load, "", override)


def test_several_mistakes_are_told_at_once(load: Load) -> None:
    lines = complaint(load, "rollout: {n: 0}\nreplicas: {standalone: -1}\n").splitlines()
    assert len(lines) == 2


@pytest.mark.parametrize("name", ["model", "temperature"])
def test_what_trainer_and_replicas_share_is_set_in_one_place(load: Load, name: str) -> None:
    assert "for trainer and replicas alike" in complaint(load, f"actor: {{{name}: 1}}")


def test_the_learner_gets_the_temperature_of_the_rollout(load: Load) -> None:
    config = load("rollout: {temperature: 0.7}\nmodel: {path: some/folder}\n")
    assert (config.actor.temperature, config.actor.model) == (0.7, "some/folder")
    assert config.rollout.sampling().temperature == 0.7


@pytest.mark.parametrize("text", ["rollout: {n: 1", "- 1\n- 2\n", "rollout: {n: 1, n: 2}"])
def test_a_file_that_is_no_mapping_or_sets_a_key_twice_is_refused(load: Load, text: str) -> None:
    assert "run.yaml" in complaint(load, text)


@pytest.mark.parametrize("override", ["rollout.n", "=1", "rollout..n=1", "rollout.n={", "model.path.deep=1"])
def test_an_override_that_cannot_be_read_is_named(load: Load, override: str) -> None:
    assert override in complaint(load, "model: {path: x}", override)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml cannot be read"):
        load_config(tmp_path / "missing.yaml")


def test_plain_data_gives_the_same_configuration_again(load: Load) -> None:
    config = load("devices: {trainer: [0, 1], 'replica:s0': cuda:1}\nrollout: {temperature: 0.5}\nweights: {folder: shared}\n")
    assert RunConfig.model_validate(config.resolved()) == config


def test_a_servers_password_does_not_get_into_the_plain_data(load: Load) -> None:
    config = load("redis: {url: 'redis://:secret@host'}")
    assert "secret" not in str(config.resolved())


def test_what_can_be_set_about_the_built_in_model_is_what_the_code_that_makes_it_takes() -> None:
    from services.tasks.model import ModelShape, WarmStart

    assert list(ShapeConfig.model_fields) == [field.name for field in fields(ModelShape)]
    assert list(WarmStartConfig.model_fields) == [field.name for field in fields(WarmStart)]


def test_reading_a_configuration_imports_neither_torch_nor_redis() -> None:
    code = (
        "import sys; import services.config_file, services.plan; "
        "print(sorted({'torch', 'transformers', 'redis', 'numpy', 'ray'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_that_settings_have_elsewhere_lead_to_ours() -> None:
    assert set(OTHER_NAMES.values()) <= set(names())
    assert not set(OTHER_NAMES) & {name.rpartition(".")[2] for name in names()}


def test_top_k_takes_minus_1_for_the_whole_vocabulary(load: Load) -> None:
    assert load("rollout: {top_k: -1}").rollout.top_k == 0
