"""What tests of single services share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.director import Director


@pytest.fixture
def director(redis_url: str, run: str, tmp_path: Path) -> Iterator[Director]:
    """The rest of a run, for replicas that are real."""
    made = Director(redis_url, run, tmp_path)
    yield made
    made.close()
