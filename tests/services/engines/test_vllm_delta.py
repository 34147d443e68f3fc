"""vLLM serves weights that a replica made from what changed: it maps the replica's copy like any other file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bus.events import WeightUpdateRequested
from services.engines.vllm_server import VllmServer
from services.weights.fetcher import Loaded, WeightFetcher
from services.weights.store import WeightNotice, WeightStore
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import VOCAB, Workshop, ask, collect, random_model
from tests.services.engines.vllm_factories import vllm_model


def asked(notice: WeightNotice) -> WeightUpdateRequested:
    return WeightUpdateRequested(
        replica="s0", epoch=1, version=notice.version, revision=0, uri=notice.uri, digest=notice.digest, delta=notice.delta
    )


def with_some_changed(weights: dict[str, torch.Tensor], version: int) -> dict[str, torch.Tensor]:
    """A thirtieth of every matrix is another one."""
    changed = {name: tensor.clone() for name, tensor in weights.items()}
    for tensor in changed.values():
        tensor.view(-1)[version::30] *= 1.5
    return changed


def logprobs_of(weights: dict[str, torch.Tensor], tokens: tuple[int, ...]) -> list[float]:
    """Of an answer to the tests' prompt, by the plain forward of transformers."""
    model = random_model(vllm_model(VOCAB), 1)
    model.load_state_dict(weights, strict=False)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[1, 2, 3, *tokens]])).logits[0, 2:-1]
    picked: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    return picked


@NEEDS_VLLM
def test_updates_by_what_changed_are_served_as_if_the_whole_weights_had_come(vllm_server: VllmServer, tmp_path: Path) -> None:
    made = Workshop("vllm", tmp_path / "model", vllm_server=vllm_server)
    store, fetcher = WeightStore("vllm-delta", "file", tmp_path / "published", delta="on"), WeightFetcher(tmp_path / "published", "on")
    engine, weights = made.build(), made.weights(1)
    del weights["lm_head.weight"]  # tied: the trainer publishes one of the two
    engine.wake()
    for version in range(3):
        notice = store.publish(weights, version, 0, 1)
        store.retire(())
        loaded = fetcher.fetch(asked(notice)).load_into(engine)
        assert loaded == (Loaded("file", notice.num_bytes) if notice.delta is None else Loaded("delta", notice.delta.num_bytes))
        engine.open()
        engine.submit(ask(f"r{version}", 40, seed=version))
        output = collect(engine, 1)[f"r{version}"]
        assert output.logprobs == pytest.approx(logprobs_of(weights, output.tokens), abs=1e-3)
        engine.pause()
        weights = with_some_changed(weights, version)
    assert loaded.transport == "delta"
    made.close()
    fetcher.close()
