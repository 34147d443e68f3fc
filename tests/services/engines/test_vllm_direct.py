"""Weights go from the process that hands them out straight into a real vLLM, through its own update session; on CPUs, so by gloo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from bus.errors import EngineError, TransferError
from services.engines.protocol import DirectCalls, DirectWays, Engine
from services.learner.digests import weights_digest
from services.transfer import nccl_sender
from services.transfer.endpoint import Publication
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import Workshop, ask, collect, own_logprobs
from tests.services.transfer.factories import stage

pytestmark = NEEDS_VLLM


def published(vllm: Workshop, version: int) -> Publication:
    weights = vllm.weights(version)
    # Of tied ones, any: here the one that vLLM's model does not have.
    del weights["model.embed_tokens.weight"]
    return Publication(version, 0, weights_digest(weights), weights)


def ways_of(engine: Engine) -> DirectWays:
    ways = engine.direct
    assert ways is not None
    return ways


def serves(engine: Engine, version: int) -> None:
    engine.submit(ask(f"of {version}", 30))
    output = collect(engine, 1)[f"of {version}"]
    assert output.logprobs == pytest.approx(own_logprobs(output, version), abs=1e-3)
    assert [span.version for span in output.spans] == [version]


def test_weights_come_from_the_process_that_hands_them_out_update_after_update(vllm: Workshop) -> None:
    engine = vllm.open()
    with stage() as place:
        taker = place.taker()
        for version in (2, 3):
            place.endpoint.publish(published(vllm, version))
            incoming = taker.begin(place.notice(published(vllm, version)))
            assert incoming is not None
            engine.pause()
            ways_of(engine).load(incoming, version)
            engine.open()
            serves(engine, version)
            assert incoming.num_bytes == sum(tensor.nbytes for tensor in published(vllm, version).tensors.values())
    engine.pause()
    engine.load_weights(vllm.weights(4), 4)
    engine.open()
    serves(engine, 4)


def test_a_hybrid_wakes_with_weights_that_come_so(vllm: Workshop) -> None:
    engine = vllm.build()
    with stage() as place:
        place.endpoint.publish(published(vllm, 2))
        incoming = place.taker().begin(place.notice(published(vllm, 2)))
        assert incoming is not None
        with pytest.raises(EngineError, match="load_weights in state asleep"):
            ways_of(engine).load(incoming, 2)
        engine.wake()
        ways_of(engine).load(incoming, 2)
        engine.open()
    serves(engine, 2)


class Offered:
    """A transfer that is made up: joins some way, and nothing more."""

    def __init__(self, weights: Mapping[str, torch.Tensor], way: str, info: Mapping[str, object]) -> None:
        self.digest = weights_digest(weights)
        self.shapes: Mapping[str, Sequence[int]] = {name: tensor.shape for name, tensor in weights.items()}
        self._way = {"way": way, "info": dict(info)}

    def run(self, names: Sequence[str], calls: DirectCalls) -> None:
        calls.join(self._way)


def test_a_way_that_its_workers_cannot_take_leaves_it_as_it_was(vllm: Workshop) -> None:
    engine = vllm.open()
    engine.pause()
    weights = vllm.weights(2)
    offers = {
        "nccl": Offered(weights, "nccl", nccl_sender.init_info(bytes(128), 1)),
        "ipc": Offered(weights, "ipc", {"uuids": ["GPU-of-somebody-else"]}),
        "smoke": Offered(weights, "smoke", {}),
    }
    for way, offer in offers.items():
        with pytest.raises(TransferError, match="vLLM cannot take weights so"):
            ways_of(engine).load(offer, 2)
        assert engine.stats().version == 1, way
    engine.open()
    serves(engine, 1)


def test_weights_of_another_model_are_not_even_begun(vllm: Workshop) -> None:
    engine = vllm.open()
    engine.pause()
    weights = vllm.weights(2) | {"model.norm.weight": torch.zeros(3)}
    with pytest.raises(EngineError, match=r"model.norm.weight has shape \(3,\)"):
        ways_of(engine).load(Offered(weights, "gloo", {}), 2)
    del weights["model.norm.weight"]
    with pytest.raises(EngineError, match="1 missing"):
        ways_of(engine).load(Offered(weights, "gloo", {}), 2)
    assert engine.stats().version == 1
    engine.load_weights(vllm.weights(2), 2)
    engine.open()
    serves(engine, 2)
