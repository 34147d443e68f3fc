"""What is frozen when a vLLM of its own hangs or dies: `make test-vllm-hard`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.errors import EngineError
from services.engines.config import EngineConfig, VllmConfig
from services.engines.vllm import VllmEngine
from services.engines.vllm_server import VllmServer
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import LONG, VOCAB, Workshop, ask, collect, logprobs_over_updates, wait_for_tokens
from tests.services.engines.vllm_factories import quietly_imported, tiny_server, vllm_model

pytestmark = NEEDS_VLLM


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VllmServer]:
    with quietly_imported():
        server = tiny_server(tmp_path)
        server.start(300)
    yield server
    server.close()


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "dies"])
def test_c19_when_vllm_fails_in_an_update_what_is_frozen_ends_with_the_tokens_it_had_or_as_an_error(
    server: VllmServer, tmp_path: Path, sent: signal.Signals
) -> None:
    vllm_model(VOCAB).save_pretrained(tmp_path)
    settings = EngineConfig(kind="vllm", max_running_requests=2, max_model_len=4096, vllm=VllmConfig(update_timeout_s=2))
    engine, workshop = VllmEngine(settings, tmp_path, server=server), Workshop("vllm", tmp_path)
    engine.start()
    engine.wake()
    engine.load_weights(workshop.weights(1), 1)
    engine.open()
    for number in range(3):
        engine.submit(ask(f"r{number}", LONG, seed=number))
    wait_for_tokens(engine, 50)
    engine.freeze()
    tokens = engine.stats().generated_tokens
    os.kill(server.pids[0], sent)
    with pytest.raises(EngineError, match="has failed"):
        engine.load_weights(workshop.weights(2), 2)
    outputs = collect(engine, 3)
    assert {output.outcome for output in outputs.values()} <= {"aborted", "error"}
    for output in outputs.values():
        if output.outcome == "aborted" and output.tokens:
            assert {span.version for span in output.spans} == {1}
            assert output.logprobs == pytest.approx(logprobs_over_updates(output, vllm_model(VOCAB)), abs=1e-3)
    if sent == signal.SIGSTOP:
        assert {output.outcome for output in outputs.values()} == {"aborted"}
        assert sum(len(output.tokens) for output in outputs.values()) == tokens
        os.kill(server.pids[0], signal.SIGCONT)
    for call in (engine.open, engine.freeze, engine.pause):
        with pytest.raises(EngineError, match="has failed"):
            call()
    engine.close()
