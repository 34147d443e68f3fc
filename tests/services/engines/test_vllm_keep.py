"""Updates of a real vLLM that end nothing: requests are frozen, and go on with the new weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.errors import EngineError
from services.engines.config import EngineConfig, VllmConfig
from services.engines.protocol import Engine
from services.engines.vllm import VllmEngine
from services.engines.vllm_server import VllmServer
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import LONG, VOCAB, Workshop, ask, collect, logprobs_over_updates, own_logprobs, wait_for_tokens
from tests.services.engines.vllm_factories import vllm_model

pytestmark = NEEDS_VLLM


def renew(engine: Engine, vllm: Workshop, version: int) -> None:
    engine.freeze()
    engine.load_weights(vllm.weights(version), version)
    engine.open()


def test_c18_each_token_of_a_long_answer_over_three_updates_is_of_the_weights_that_its_span_names(vllm: Workshop) -> None:
    engine = vllm.open()
    prompts = {"short": (1, 2, 3), "long": tuple(number % 30 + 1 for number in range(300))}
    for name, prompt in prompts.items():
        engine.submit(ask(name, LONG - 300, prompt))
    for version in (2, 3, 4):
        wait_for_tokens(engine, 30)
        renew(engine, vllm, version)
    wait_for_tokens(engine, 30)
    engine.abort(list(prompts))
    outputs = collect(engine, 2)
    for name, prompt in prompts.items():
        output = outputs[name]
        assert [span.version for span in output.spans] == [1, 2, 3, 4]
        assert output.logprobs == pytest.approx(logprobs_over_updates(output, vllm_model(VOCAB), prompt), abs=1e-3)


def test_c28_what_starts_after_such_an_update_uses_nothing_that_older_weights_cached(vllm: Workshop) -> None:
    engine = vllm.open()
    prompt = tuple(number % 30 + 1 for number in range(600))
    engine.submit(ask("kept", LONG - 600, prompt))
    for version in (2, 3):
        wait_for_tokens(engine, 10)
        renew(engine, vllm, version)
        for attempt in range(2):
            engine.submit(ask(f"{version}.{attempt}", 20, prompt, seed=1))
            output = collect(engine, 1)[f"{version}.{attempt}"]
            assert output.logprobs == pytest.approx(own_logprobs(output, version, prompt), abs=1e-3)


def test_c28_a_cache_that_is_to_be_reset_at_updates_refuses_to_freeze(vllm_server: VllmServer, tmp_path: Path, vllm: Workshop) -> None:
    vllm_model(VOCAB).save_pretrained(tmp_path)
    config = EngineConfig(kind="vllm", max_running_requests=8, max_model_len=4096, vllm=VllmConfig(prefix_cache="reset"))
    engine = VllmEngine(config, tmp_path, server=vllm_server)
    engine.start()
    engine.wake()
    engine.load_weights(vllm.weights(1), 1)
    engine.open()
    engine.submit(ask("r", 20))
    with pytest.raises(EngineError, match="set prefix_cache to auto"):
        engine.freeze()
    assert collect(engine, 1)["r"].outcome == "length"
    engine.close()
