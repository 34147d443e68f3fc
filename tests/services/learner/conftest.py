"""Fixtures shared by the learner's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.services.learner.factories import save_tiny_qwen2


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_qwen2(tmp_path_factory.mktemp("models") / "tiny-qwen2")


@pytest.fixture(autouse=True)
def _restore_process_settings() -> Iterator[None]:
    """A learner sets these for its whole process; the tests share one."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
