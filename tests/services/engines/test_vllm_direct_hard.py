"""A direct transfer that breaks off inside a real vLLM is the end of its engine: `make test-vllm-hard`."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping, ValuesView
from pathlib import Path
from typing import cast

import pytest
import torch

from bus.errors import EngineError
from services.learner.digests import weights_digest
from services.transfer.endpoint import Publication
from services.transfer.senders import EngineCalls, GlooSender
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.factories import LONG, Workshop, ask, wait_for_tokens
from tests.services.engines.test_vllm_hard import alive
from tests.services.engines.vllm_factories import quietly_imported, tiny_server
from tests.services.transfer.factories import stage

pytestmark = NEEDS_VLLM


class Halving(GlooSender):
    """Goes after half of the weights that it has announced."""

    def send(self, tensors: Mapping[str, torch.Tensor], workers: int, calls: EngineCalls) -> None:
        super().send(_Half(tensors), workers, calls)


class _Half(UserDict[str, torch.Tensor]):
    """Tensors that are all there when they are described, and then only the first half of them."""

    asked = 0

    def values(self) -> ValuesView[torch.Tensor]:
        self.asked += 1
        return super().values() if self.asked < 3 else cast(ValuesView[torch.Tensor], self._first())

    def _first(self) -> Iterator[torch.Tensor]:
        yield from list(super().values())[: len(self) // 2]
        raise ConnectionError("the process is gone")


def test_a_trainer_that_goes_in_the_middle_leaves_no_engine_that_could_serve_half_of_its_weights(tmp_path: Path) -> None:
    with quietly_imported():
        server = tiny_server(tmp_path)
        workshop = Workshop("vllm", tmp_path, vllm_server=server)
        engine = workshop.open()
    pids = server.pids
    weights = workshop.weights(2)
    published = Publication(2, 0, weights_digest(weights), weights)
    engine.submit(ask("in flight", LONG))
    wait_for_tokens(engine, 5)
    with stage(lambda _: Halving()) as place:
        place.endpoint.publish(published)
        incoming = place.taker().begin(place.notice(published))
        assert incoming is not None
        assert engine.direct is not None
        engine.freeze()
        with pytest.raises(EngineError):
            engine.direct.load(incoming, 2)
    with pytest.raises(EngineError):
        engine.open()
    outputs = engine.poll(5)
    assert [output.request for output in outputs] == ["in flight"]
    engine.close()
    server.close()
    assert not any(map(alive, pids))
