"""The learner's configuration: limits, and that reading it needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from services.learner.config import LearnerConfig


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lr": 0.0}, "lr"),
        ({"clip_low": 1.0}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"max_tokens_per_micro_batch": 0}, "max_tokens_per_micro_batch"),
        ({"tis_cap": 0.0}, "tis_cap"),
        ({"dtype": "bfloat16"}, "needs device cuda"),
        ({"learning_rate": 1e-5}, "learning_rate"),
        ({"lr_schedule": "polynomial"}, "lr_schedule"),
    ],
)
def test_a_setting_outside_its_limits_or_unknown_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        LearnerConfig.model_validate({"model": "folder", **settings})


def test_a_trust_region_is_the_default_c_52() -> None:
    config = LearnerConfig(model="folder")
    assert config.old_logprobs == "rollout"
    assert 0 < config.clip_low < 1
    assert config.clip_high > 0


def test_configuration_micro_batches_schedule_and_protocol_do_not_import_torch() -> None:
    code = (
        "import sys, services.learner.config, services.learner.micro_batches, services.learner.schedule, services.learner.protocol;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
