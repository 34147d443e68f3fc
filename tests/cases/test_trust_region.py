"""C-52: losses without a trust region on stale samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.advice import advice
from services.config_file import make_config
from tests.test_cli import SCRIPTED, swingshift


def advice_of(staleness: float, steps: int, **actor: object) -> list[str]:
    timing = {"total_steps": 4, "staleness_threshold": staleness, "trigger_parameter_sync_step": steps}
    return advice(make_config({"async_training": timing, "actor": actor}, "test"))


def test_c52_the_default_loss_has_a_trust_region_and_no_warning() -> None:
    config = make_config({"async_training": {"total_steps": 4}}, "test")
    assert config.actor.policy_loss == "clip"
    assert 0 < config.actor.clip_low < 1
    assert config.actor.clip_high > 0
    assert config.async_training.staleness_threshold > 0
    assert advice(config) == []


@pytest.mark.parametrize(("staleness", "steps"), [(0.5, 4), (3.0, 1), (0.0, 2)])
def test_c52_an_unclipped_loss_under_staleness_warns_with_the_values_and_what_to_do(staleness: float, steps: int) -> None:
    (text,) = advice_of(staleness, steps, policy_loss="unclipped")
    assert "actor.policy_loss is unclipped" in text
    assert f"staleness_threshold is {staleness:g}" in text
    assert f"trigger_parameter_sync_step is {steps}" in text
    assert "Set actor.policy_loss to clip" in text


def test_c52_an_unclipped_loss_on_fresh_samples_does_not_warn() -> None:
    assert advice_of(0.0, 1, policy_loss="unclipped") == []


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a scripted run whose folder lies in tmp_path/runs."""
    path = tmp_path / "quick.yaml"
    path.write_text(f"{SCRIPTED}folder: {tmp_path / 'runs'}\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "r1"


UNCLIPPED = ("--set", "actor.policy_loss=unclipped", "--set", "async_training.total_steps=2")


def test_c52_the_warning_is_shown_with_the_plan(config: Path) -> None:
    shown = swingshift("run", str(config), "--dry-run", *UNCLIPPED)
    assert "warning: actor.policy_loss is unclipped, async_training.staleness_threshold is 0.5" in shown
    assert "warning:" not in swingshift("run", str(config), "--dry-run")


def test_c52_the_warning_is_shown_and_logged_at_the_start(config: Path, folder: Path) -> None:
    shown = swingshift("run", str(config), "--run", "r1", "--in-process", *UNCLIPPED)
    assert "warning: actor.policy_loss is unclipped" in shown
    assert "WARNING services.launcher.run actor.policy_loss is unclipped" in (folder / "logs" / "supervisor.log").read_text()
