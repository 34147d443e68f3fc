"""The trainer keeps a process that hands out weights, and loses nothing when that one is lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.errors import ConfigError
from bus.events import DirectWeights, WeightUpdateRequested
from services.learner.digests import weights_digest
from services.transfer import outlet as outlet_module
from services.transfer.choice import Choice, Giver, Taker
from services.transfer.greeting import new_token
from services.transfer.outlet import COMMAND, Outlet
from services.transfer.process import Settings, makers, read
from services.transfer.taker import DirectTaker
from services.weights.store import WeightNotice, WeightStore
from tests.services.transfer.factories import LIMIT_S, Engine, children_of, some_weights

GIVER = Giver("here", ("cuda:0", "cuda:1"), ("gloo",))


@pytest.fixture
def token() -> bytes:
    return new_token()


@pytest.fixture
def outlet(token: bytes) -> Iterator[Outlet]:
    made = Outlet(GIVER, "127.0.0.1", token, LIMIT_S)
    made.start()
    yield made
    made.close()


def told(notice: WeightNotice, direct: DirectWeights | None) -> WeightUpdateRequested:
    return WeightUpdateRequested(
        replica="s0", epoch=1, version=notice.version, revision=0, uri=notice.uri, digest=notice.digest, direct=direct
    )


def within(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)
    raise AssertionError(f"it has not happened within {seconds} s")


def test_its_process_hands_out_what_was_published_and_is_started_again_when_it_is_killed(
    outlet: Outlet, token: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    store = WeightStore("outlet-test", "file", tmp_path)
    taker = DirectTaker("s0", lambda: 1, lambda: token, lambda *_: Choice("gloo"), Taker("", (), ("gloo",)), 1, LIMIT_S)
    addresses = set()
    for version in (1, 2):
        notice = store.publish(some_weights(version), version, 0, 1)
        direct = outlet.announce(notice)
        assert direct == DirectWeights(address=outlet.address, transports=("gloo",), machine="here", devices=("cuda:0", "cuda:1"))
        addresses.add(direct.address)
        incoming = next(found for _ in within(60) if (found := taker.begin(told(notice, direct))) is not None)
        # The file may go: what is handed out is mapped.
        store.purge()
        assert weights_digest(Engine().take(incoming)) == notice.digest
        if version == 1:
            (pid,) = children_of(COMMAND[-1])
            os.kill(pid, signal.SIGKILL)
            next(None for _ in within(10) if pid not in children_of(COMMAND[-1]))
    assert len(addresses) == 1
    taker.close()
    outlet.close()
    assert not children_of(COMMAND[-1])


def test_it_listens_for_other_machines_once_a_replica_is_on_one(token: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    outlet = Outlet(GIVER, "127.0.0.1", token, LIMIT_S, far_host="127.0.0.2")
    outlet.start()
    store = WeightStore("outlet-test", "file", tmp_path)
    taker = DirectTaker("s0", lambda: 1, lambda: token, lambda *_: Choice("gloo"), Taker("", (), ("gloo",)), 1, LIMIT_S)
    for version, host in ((1, "127.0.0.1"), (2, "127.0.0.2")):
        notice = store.publish(some_weights(version), version, 0, 1)
        direct = outlet.announce(notice, beyond=version > 1)
        assert direct is not None
        assert direct.address == outlet.address
        assert direct.address.startswith(f"{host}:")
        incoming = next(found for _ in within(60) if (found := taker.begin(told(notice, direct))) is not None)
        assert weights_digest(Engine().take(incoming)) == notice.digest
    taker.close()
    outlet.close()
    assert not children_of(COMMAND[-1])


def test_a_host_that_others_cannot_come_to_leaves_it_where_it_is(token: bytes, caplog: pytest.LogCaptureFixture) -> None:
    outlet = Outlet(GIVER, "127.0.0.1", token, LIMIT_S, far_host="192.0.2.1")
    direct = outlet.announce(WeightNotice(1, 0, "file", "file:///w", "", 0, 0.0), beyond=True)
    assert direct is not None
    assert direct.address.startswith("127.0.0.1:")
    assert "replicas on other machines take the retained copy" in caplog.text
    outlet.close()


def test_publishing_goes_on_when_the_process_never_starts(
    tmp_path: Path, token: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outlet_module, "WAIT_S", 0.01)
    outlet = Outlet(GIVER, "127.0.0.1", token, LIMIT_S, [sys.executable, "-c", "raise SystemExit(7)"])
    notice = WeightNotice(1, 0, "file", (tmp_path / "weights").as_uri(), "", 0, 0.0)
    assert outlet.announce(notice) is not None
    outlet.start()
    next(None for _ in within(30) if outlet.announce(notice) is None)
    outlet.close()
    assert "has ended: code=7 start=1 of=8" in caplog.text
    assert "replicas take the retained copy; starts=8" in caplog.text


def test_a_replica_whose_transfer_was_the_end_of_a_process_gets_nothing_from_the_next(
    tmp_path: Path, token: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_module, "WAIT_S", 0.01)
    told_to_it = tmp_path / "settings"
    script = f'read line; echo "$line" >> {told_to_it}; echo \'{{"s0": "it hung"}}\'; exit 5'
    outlet = Outlet(GIVER, "127.0.0.1", token, LIMIT_S, ["/bin/sh", "-c", script])
    outlet.start()
    lines = next(found for _ in within(30) if told_to_it.exists() and len(found := told_to_it.read_text().splitlines()) > 1)
    outlet.close()
    first, second = (Settings.model_validate_json(line) for line in lines[:2])
    assert (first.struck, second.struck) == ({}, {"s0": "it hung"})


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_this_machines_is_a_mistake_of_the_configuration(host: str, token: bytes) -> None:
    with pytest.raises(ConfigError, match=r"set weights.direct_host to an address of the trainer's"):
        Outlet(GIVER, host, token, LIMIT_S)


def test_weights_that_are_gone_or_torn_are_not_handed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notice = WeightStore("outlet-test", "file", tmp_path).publish(some_weights(1), 1, 0, 1)
    line = '{"version": 1, "revision": 0, "digest": "d", "uri": "%s"}'
    assert read(line % notice.uri) is not None
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"not at all")
    for uri in (torn.as_uri(), (tmp_path / "gone").as_uri(), "http://elsewhere/weights"):
        assert read(line % uri) is None
    assert read("nonsense") is None
    assert caplog.text.count("weights cannot be handed out") == 4


def test_only_what_is_offered_can_be_made() -> None:
    settings = Settings(descriptor=0, token="", devices=("cuda:3", "cuda:5"), transports=("ipc", "nccl"), limit_s=1)
    assert sorted(makers(settings)) == ["ipc", "nccl"]
