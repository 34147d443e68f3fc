"""What the tests of the engines share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.engines.factories import Workshop


@pytest.fixture(params=["embedded", "scripted"])
def workshop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workshop]:
    """Each test that takes it runs once with each kind of engine."""
    made = Workshop(request.param, tmp_path)
    yield made
    made.close()
