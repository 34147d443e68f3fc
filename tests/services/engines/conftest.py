"""What the tests of the engines share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.engines.vllm_server import VllmServer
from tests.services.engines.factories import Workshop
from tests.services.engines.vllm_factories import DEADLY, quietly_imported, tiny_server

NEEDS_VLLM = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: `make test-vllm` has it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What destroys the one vLLM comes last."""
    items.sort(key=lambda item: item.name == "test_c40_a_crash_is_an_error_for_all_in_flight_and_for_every_later_call[vllm]")


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One vLLM for all tests: each puts an engine of its own around it."""
    with quietly_imported():
        server = tiny_server(tmp_path_factory.mktemp("vllm"), logits_processors=[DEADLY])
        server.start(300)
    yield server
    server.close()


@pytest.fixture
def vllm(vllm_server: VllmServer, tmp_path: Path) -> Iterator[Workshop]:
    """Builds engines around the one vLLM."""
    made = Workshop("vllm", tmp_path, vllm_server=vllm_server)
    yield made
    made.close()


@pytest.fixture(params=["embedded", "scripted", pytest.param("vllm", marks=NEEDS_VLLM)])
def workshop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workshop]:
    """Each test that takes it runs once with each kind of engine."""
    server = request.getfixturevalue("vllm_server") if request.param == "vllm" else None
    made = Workshop(request.param, tmp_path, vllm_server=server)
    yield made
    made.close()
