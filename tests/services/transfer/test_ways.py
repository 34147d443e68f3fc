"""Whatever is wrong with the direct way, a replica has the weights; and an engine that was touched is never given others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bus.errors import BlobMissing, EngineError, TransferError
from bus.events import DirectWeights, WeightUpdateRequested
from services.engines.config import EngineConfig
from services.engines.protocol import DirectTransfer, DirectWays
from services.engines.script import Script, varying_length
from services.engines.scripted import ScriptedEngine
from services.transfer.choice import Choice, Taker
from services.transfer.endpoint import Publication
from services.transfer.taker import DirectTaker, way_of
from services.transfer.ways import WeightWays
from services.weights.fetcher import Loaded, WeightFetcher
from services.weights.store import WeightNotice, WeightStore
from tests.services.transfer.factories import Engine as Calls
from tests.services.transfer.factories import Stage, some_weights, stage


class DirectEngine(ScriptedEngine):
    """One that takes weights directly, too, and remembers how they came."""

    def __init__(self) -> None:
        super().__init__(EngineConfig(kind="scripted"), Script(varying_length(1, 2), 1000.0))
        self.came: list[tuple[str, int]] = []
        self.refuses = False
        self.calls = Calls()

    @property
    def direct(self) -> DirectWays:  # type: ignore[override]  # a scripted one takes nothing
        return DirectWays(("gloo",), 1, self._load_direct)

    def load_weights(self, weights: object, version: int) -> None:
        self.came.append(("copy", version))
        super().load_weights({}, version)

    def _load_direct(self, transfer: DirectTransfer, version: int) -> None:
        if self.refuses:
            raise TransferError("vLLM cannot take weights so")
        self.calls.take(transfer)
        self.came.append(("direct", version))


class Scene:
    """A trainer that publishes and hands out, and a replica."""

    def __init__(self, place: Stage, folder: Path) -> None:
        self.place = place
        self.store = WeightStore("ways-test", "file", folder)
        self.engine = DirectEngine()
        self.engine.start()
        self.engine.wake()
        self.taker = place.taker()
        self.ways = WeightWays(WeightFetcher(folder), self.taker)

    def publish(self, version: int) -> WeightUpdateRequested:
        notice = self.store.publish(some_weights(version), version, 0, 1)
        self.place.endpoint.publish(Publication(version, 0, notice.digest, some_weights(version)))
        return self.asked(notice)

    def asked(self, notice: WeightNotice) -> WeightUpdateRequested:
        return WeightUpdateRequested(
            replica="s0", epoch=1, version=notice.version, revision=0, uri=notice.uri, digest=notice.digest,
            direct=DirectWeights(address=self.place.address, transports=("gloo",)),
        )  # fmt: skip

    def load(self, asked: WeightUpdateRequested) -> Loaded:
        return self.ways.fetch(asked).load_into(self.engine)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    with stage() as place:
        made = Scene(place, tmp_path)
        yield made
        made.ways.close()
        made.engine.close()


def test_weights_come_directly_where_that_goes(scene: Scene) -> None:
    num_bytes = sum(tensor.nbytes for tensor in some_weights(1).values())
    assert scene.load(scene.publish(1)) == Loaded("gloo", num_bytes)
    assert scene.engine.came == [("direct", 1)]
    assert torch.equal(scene.engine.calls.taken["a.weight"], some_weights(1)["a.weight"])


def test_without_an_offer_they_come_as_the_copy(scene: Scene) -> None:
    assert scene.load(scene.publish(1).model_copy(update={"direct": None})).transport == "file"
    assert scene.engine.came == [("copy", 1)]


def test_when_nobody_hands_them_out_any_more_they_come_as_the_copy_and_directly_again_later(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    gone = DirectWeights(address="127.0.0.1:1", transports=("gloo",))
    assert scene.load(scene.publish(1).model_copy(update={"direct": gone})).transport == "file"
    assert "taking the retained copy: weights of version 1 do not come by gloo: nobody hands out weights at 127.0.0.1:1" in caplog.text
    assert scene.load(scene.publish(2)).transport == "gloo"


def test_when_the_engine_cannot_they_come_as_the_copy(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.engine.refuses = True
    assert scene.load(scene.publish(1)).transport == "file"
    assert "taking the retained copy: gloo did not come about: vLLM cannot take weights so" in caplog.text
    scene.engine.refuses = False
    assert scene.load(scene.publish(2)).transport == "gloo"
    assert scene.engine.came == [("copy", 1), ("direct", 2)]


def test_an_engine_that_failed_on_the_way_gets_no_copy(scene: Scene) -> None:
    scene.engine.calls.fails_at = "receive"
    with pytest.raises(EngineError, match="receive failed"):
        scene.load(scene.publish(1))
    assert scene.engine.came == []


def test_a_token_that_is_gone_is_no_reason_to_fail(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def gone() -> bytes:
        raise BlobMissing("payload 'token:weights' is not there")

    taker = DirectTaker("s0", lambda: 1, gone, lambda *_: Choice("gloo"), Taker("", (), ("gloo",)), 1, 5)
    ways = WeightWays(WeightFetcher(Path("/nowhere")), taker)
    assert ways.fetch(scene.publish(1)).load_into(scene.engine).transport == "file"
    assert "payload 'token:weights' is not there" in caplog.text


def test_why_a_way_is_not_taken_is_said_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    end = Taker("here", ("cuda:0",), ("nccl", "ipc"))
    taker = DirectTaker("s0", lambda: 1, lambda: b"", way_of("nccl", end), end, 1, 5)
    on_the_same_gpu = DirectWeights(address="127.0.0.1:1", transports=("nccl",), machine="here", devices=("cuda:0",))
    for version in (1, 2):
        assert taker.begin(scene.publish(version).model_copy(update={"direct": on_the_same_gpu})) is None
    assert caplog.text.count("ways for weights that are not taken: nccl: both ends are on cuda:0") == 1
