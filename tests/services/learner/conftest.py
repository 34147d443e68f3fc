"""Fixtures shared by the learner's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.learner.factories import process_settings_restored, save_tiny_qwen2


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_qwen2(tmp_path_factory.mktemp("models") / "tiny-qwen2")


@pytest.fixture(autouse=True)
def _restore_process_settings() -> Iterator[None]:
    with process_settings_restored():
        yield
