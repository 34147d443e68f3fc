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
        ({"rollout_is_threshold": 0.0}, "rollout_is_threshold"),
        ({"rollout_is_limit": "mask", "rollout_is_threshold": 0.5}, "every weight would be masked"),
        ({"overlong_buffer_len": 30, "max_response_length": 20}, "overlong_buffer_len is 30, answers have at most 20"),
        ({"adv_estimator": "gae"}, "adv_estimator"),
        ({"loss_agg_mode": "mean"}, "loss_agg_mode"),
        ({"old_logprobs": "rollout"}, "bypass"),
        ({"dtype": "bfloat16"}, "needs device cuda"),
        ({"learning_rate": 1e-5}, "learning_rate"),
        ({"lr_schedule": "polynomial"}, "lr_schedule"),
    ],
)
def test_a_setting_outside_its_limits_or_unknown_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        LearnerConfig.model_validate({"model": "folder", **settings})


def test_configuration_micro_batches_schedule_and_protocol_do_not_import_torch() -> None:
    code = (
        "import sys, services.learner.config, services.learner.micro_batches, services.learner.schedule, services.learner.protocol;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
