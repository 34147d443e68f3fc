"""Weights go from the process that hands them out to replicas, and from nobody to nobody else, whatever either end does."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Mapping

import pytest
import torch

from bus.errors import EngineError, TransferError
from services.learner.digests import weights_digest
from services.transfer import endpoint as endpoint_module
from services.transfer import greeting
from services.transfer.channel import LENGTH, Channel
from services.transfer.greeting import greet, new_token
from services.transfer.messages import Challenge, Hello, Offer, Proof, Refused, Take, Welcome, encode, expected
from services.transfer.senders import EngineCalls
from services.transfer.taker import Incoming
from tests.services.transfer.factories import Dying, Engine, Stage, publication, some_weights, stage


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups on this machine set these; they are put back."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")


def begun(place: Stage, version: int, replica: str = "s0", epoch: int = 1) -> Incoming:
    incoming = place.taker(replica, epoch).begin(place.notice(publication(version)))
    assert incoming is not None
    return incoming


def test_weights_arrive_bit_for_bit_and_the_group_is_kept_for_the_next_ones() -> None:
    with stage() as place:
        taker, engine = place.taker(), Engine()
        for version in (1, 2):
            place.endpoint.publish(publication(version))
            incoming = taker.begin(place.notice(publication(version)))
            assert incoming is not None
            assert weights_digest(engine.take(incoming)) == incoming.digest == publication(version).digest
            assert incoming.num_bytes == sum(tensor.nbytes for tensor in some_weights(version).values())
        assert engine.calls == ["join", "start", "receive", "finish", "start", "receive", "finish"]


def test_only_what_a_replica_asks_for_is_sent_in_the_order_in_which_it_asks() -> None:
    with stage() as place:
        place.endpoint.publish(publication(3))
        incoming = begun(place, 3)
        assert incoming.shapes["a.weight"] == [8, 16]
        taken = Engine().take(incoming, ["scale", "a.weight"])
        assert list(taken) == ["scale", "a.weight"]
        assert torch.equal(taken["a.weight"], some_weights(3)["a.weight"])


def test_a_version_that_is_not_the_newest_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with stage() as place:
        place.endpoint.publish(publication(2))
        taker = place.taker()
        assert taker.begin(place.notice(publication(1))) is None
        assert "weights 1.0 are not the newest here, which are 2.0" in caplog.text
        assert taker.begin(place.notice(publication(2))) is not None


def test_a_replica_that_is_early_waits_for_the_publication() -> None:
    with stage() as place:
        threading.Timer(0.3, place.endpoint.publish, [publication(1)]).start()
        assert Engine().take(begun(place, 1))


def test_one_that_is_too_early_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(endpoint_module, "SOON_S", 0.05)
    with stage() as place:
        assert place.taker().begin(place.notice(publication(1))) is None
        assert "are not the newest here, which are none" in caplog.text


def test_a_publication_with_another_digest_than_the_notice_says_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        other = place.notice(publication(1)).model_copy(update={"digest": "0" * 64})
        assert place.taker().begin(other) is None
        assert "the notice says 000" in caplog.text


# --- who may have them -----------------------------------------------------------------------------------------------------------


def test_who_does_not_know_the_token_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        # It cannot even tell that the trainer is the trainer, and goes no further.
        assert place.taker(token=new_token()).begin(place.notice(publication(1))) is None
        assert "does not know this run's token" in caplog.text
        channel = Channel.connect(place.address)
        channel.send(Hello(replica="s0", epoch=1, nonce=bytes(32)), 1)
        expected(channel.receive(5), Challenge)
        channel.send(Proof(proof=bytes(32)), 1)
        with pytest.raises(TransferError, match="the token is not this run's"):
            expected(channel.receive(5), Welcome)
        channel.close()


def test_the_trainers_own_proof_does_not_do_for_a_replicas() -> None:
    with stage() as place:
        channel = Channel.connect(place.address)
        channel.send(Hello(replica="s0", epoch=1, nonce=bytes(32)), 1)
        challenge = expected(channel.receive(5), Challenge)
        channel.send(Proof(proof=challenge.proof), 1)
        assert isinstance(channel.receive(5), Refused)
        channel.close()


def test_an_impostor_at_the_trainers_address_gets_no_replica() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connection, _ = listener.accept()
            channel = Channel(connection)
            channel.receive(5)
            channel.send(Challenge(nonce=bytes(32), proof=bytes(32)), 5)
            with contextlib.suppress(TransferError):
                channel.receive(5)
            channel.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        channel = Channel.connect(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(TransferError, match="it is not the trainer"):
            greet(channel, new_token(), "s0", 1)
        channel.close()
        thread.join()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(1 << 31),
        LENGTH.pack(5000) + bytes(5000),
        LENGTH.pack(3) + b"\xc1\xc1\xc1",
        LENGTH.pack(len(encode(Take(version=1, revision=0, transport="gloo", workers=1, limit_s=1))))
        + encode(Take(version=1, revision=0, transport="gloo", workers=1, limit_s=1)),
        b"",
    ],
)
def test_whatever_a_stranger_says_the_others_are_served(said: bytes) -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        with place.stranger() as stranger:
            stranger.sendall(said)
            if not said:
                stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(1) == b"", "it is hung up on"
        assert Engine().take(begun(place, 1))


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "GREETING_S", 0.1)
    with stage() as place, place.stranger() as silent:
        silent.settimeout(5)
        assert silent.recv(1) == b""


def test_strangers_cannot_take_all_connections_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(greeting, "GREETING_S", 0.3)
    with stage() as place, contextlib.ExitStack() as stack:
        place.endpoint.publish(publication(1))
        for _ in range(6):
            stack.enter_context(place.stranger())
        deadline = time.monotonic() + 10
        while (incoming := place.taker().begin(place.notice(publication(1)))) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert Engine().take(incoming)


def test_an_older_incarnation_is_hung_up_on_and_not_let_in_again(caplog: pytest.LogCaptureFixture) -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        old = begun(place, 1, epoch=1)
        assert Engine().take(begun(place, 1, epoch=2))
        with pytest.raises(TransferError, match=r"closed the connection|could not be sent"):
            Engine().take(old)
        assert place.taker(epoch=1).begin(place.notice(publication(1))) is None
        assert "incarnation 2 of s0 is connected, this is 1" in caplog.text


# --- what goes wrong on the way --------------------------------------------------------------------------------------------------


def test_a_replica_that_dies_in_a_transfer_holds_up_nobody() -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        dying = place.taker("s0")
        incoming = dying.begin(place.notice(publication(1)))
        assert incoming is not None
        engine = Engine(hangs_at="receive")
        errors: list[Exception] = []

        def take() -> None:
            try:
                engine.take(incoming)
            except EngineError as error:
                errors.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        while "receive" not in engine.calls:
            time.sleep(0.01)
        other = begun(place, 1, replica="s1")
        dying.close()
        engine.die()
        assert Engine().take(other)
        thread.join()
        assert errors


def test_a_replica_whose_transfer_broke_off_half_way_is_not_given_another(caplog: pytest.LogCaptureFixture) -> None:
    with stage(lambda _: Dying("start")) as place:
        place.endpoint.publish(publication(1))
        with pytest.raises(TransferError, match="closed the connection"):
            Engine().take(begun(place, 1))
        assert place.taker(epoch=2).begin(place.notice(publication(1))) is None
        assert "a transfer to s0 broke off half-way before (RuntimeError: the device is lost)" in caplog.text
        assert place.taker("s1").begin(place.notice(publication(1))) is not None


def test_one_that_never_began_is_tried_again() -> None:
    with stage(lambda _: Dying("nothing")) as place:
        place.endpoint.publish(publication(1))
        with pytest.raises(TransferError, match="closed the connection"):
            Engine().take(begun(place, 1))
        assert place.taker(epoch=2).begin(place.notice(publication(1))) is not None


def test_a_failing_engine_ends_the_transfer_at_both_ends() -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        with pytest.raises(EngineError, match="receive failed"):
            Engine(fails_at="receive").take(begun(place, 1))
        assert Engine().take(begun(place, 1, replica="s1"))


def test_a_trainer_that_goes_interrupts_what_the_engine_waits_for() -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        incoming = begun(place, 1)
        engine = Engine(hangs_at="receive")
        threading.Timer(0.3, place.endpoint.close).start()
        with pytest.raises(EngineError, match="receive was interrupted"):
            engine.take(incoming)
        assert engine.interrupted == "the process that hands out weights has gone"


def test_a_transfer_without_end_is_interrupted() -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        incoming = place.taker(limit_s=0.5).begin(place.notice(publication(1)))
        assert incoming is not None
        engine = Engine(hangs_at="receive")
        with pytest.raises(EngineError, match="receive was interrupted"):
            engine.take(incoming)
        assert engine.interrupted in (
            "the transfer has not ended within 0.5 s (weights.direct_timeout_s)",
            "the process that hands out weights has gone",  # whose limit is the same
        )


def test_what_only_the_end_of_the_process_ends_is_said() -> None:
    class Uninterruptible(Dying):
        interruptible = False

        def send(self, tensors: Mapping[str, torch.Tensor], workers: int, calls: EngineCalls) -> None:
            calls.update_weights({})

    with stage(lambda _: Uninterruptible("")) as place:
        place.endpoint.publish(publication(1))
        with pytest.raises(EngineError, match="receive failed"):
            Engine(fails_at="receive").take(begun(place, 1))
        while not place.lost:
            time.sleep(0.01)
        assert place.lost == ["s0: receive: the replica has failed: receive failed"]


def test_a_way_that_is_not_offered_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with stage() as place:
        place.endpoint.publish(publication(1))
        channel = Channel.connect(place.address)
        greet(channel, place.token, "s0", 1)
        channel.send(Take(version=1, revision=0, transport="nccl", workers=1, limit_s=1), 1)
        with pytest.raises(TransferError, match="nccl is not offered, but gloo"):
            expected(channel.receive(5), Offer)
        channel.close()


def test_nobody_at_the_address_is_no_reason_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    with stage() as place:
        taker = place.taker()
    assert taker.begin(place.notice(publication(1))) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "nobody hands out weights at" in caplog.text
