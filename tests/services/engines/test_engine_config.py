"""Engine settings are frozen, bounded, and cheap to import."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from services.engines.config import EngineConfig


@pytest.mark.parametrize(
    "wrong", [{"max_running_requests": 0}, {"max_model_len": 4}, {"kind": "magic"}, {"dtype": "int8"}, {"max_runing_requests": 3}]
)
def test_settings_out_of_range_or_unknown_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EngineConfig.model_validate(wrong)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        EngineConfig().max_model_len = 9  # type: ignore[misc]  # that is the point


@pytest.mark.parametrize("module", ["config", "protocol", "scripted", "docket"])
def test_what_computes_nothing_does_not_import_torch(module: str) -> None:
    code = f"import sys, services.engines.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
