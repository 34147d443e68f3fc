"""A replica's side: gets weights straight from the trainer's process where that is possible, and says when it is not.

begin:  choice ▸ connection, kept from one transfer to the next ▸ greeting ▸ Take ▸ Offer      the engine may go on serving
run:    Begin ▸ what the trainer's end asks of the engine ▸ Sent                               the engine is paused
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from bus.errors import BlobMissing, EngineError, TransferError
from bus.events import DirectWeights, WakeRequested, WeightUpdateRequested
from services.engines.protocol import DirectCalls
from services.machine import SHARED_MEMORY
from services.places import published_file
from services.transfer.channel import Channel
from services.transfer.choice import Choice, Giver, Retained, Taker, Wanted, choose
from services.transfer.greeting import greet
from services.transfer.messages import Begin, Call, Done, Failed, Offer, Sent, Take, expected

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
Notice = WakeRequested | WeightUpdateRequested
Choose = Callable[[Notice, DirectWeights], Choice]


class DirectTaker:
    """Of one incarnation of one replica. `token` reads it from where only the run's services can."""

    def __init__(
        self,
        replica: str,
        epoch: Callable[[], int],
        token: Callable[[], bytes],
        choose_way: Choose,
        end: Taker,
        workers: int,
        limit_s: float,
    ) -> None:
        self._replica = replica
        self._epoch = epoch
        self._token = token
        self._choose = choose_way
        self._end = end
        self._workers = workers
        self._limit_s = limit_s
        self._channel: Channel | None = None
        self._address = ""
        self._said: tuple[str, ...] = ()

    def begin(self, notice: Notice) -> Incoming | None:
        """The weights of a notice as they are offered; None: they are to be had as the retained copy only, which the log says why."""
        if notice.direct is None:
            return None
        choice = self._choose(notice, notice.direct)
        self._say(choice.reasons)
        if choice.direct is None:
            return None
        try:
            return self._ask(notice, notice.direct, choice.direct)
        except (TransferError, BlobMissing) as error:
            self.give_up(f"weights of version {notice.version} do not come by {choice.direct}: {error}")
            return None

    def give_up(self, reason: str) -> None:
        """This connection is of no use any more; the next transfer tries another one."""
        logger.warning("taking the retained copy: %s", reason)
        self.close()

    def close(self) -> None:
        """Ends the connection, and with it this replica's group."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ask(self, notice: Notice, direct: DirectWeights, transport: str) -> Incoming:
        channel = self._connected(direct.address)
        take = Take(
            version=notice.version, revision=notice.revision, transport=transport, workers=self._workers, devices=self._end.devices,
            limit_s=self._limit_s,
        )  # fmt: skip
        channel.send(take, ANSWER_S)
        offer = expected(channel.receive(self._limit_s), Offer)
        if offer.digest != notice.digest:
            raise TransferError(f"the trainer offers weights of digest {offer.digest}, the notice says {notice.digest}")
        return Incoming(channel, offer, transport, self._limit_s)

    def _connected(self, address: str) -> Channel:
        if self._channel is not None and (self._address != address or self._channel.wait(0) == "ended"):
            self.close()
        if self._channel is None:
            channel = Channel.connect(address)
            try:
                greet(channel, self._token(), self._replica, self._epoch())
            except (TransferError, BlobMissing):
                channel.close()
                raise
            self._channel, self._address = channel, address
        return self._channel

    def _say(self, reasons: tuple[str, ...]) -> None:
        """Once, until there are others."""
        if reasons and reasons != self._said:
            logger.info("ways for weights that are not taken: %s", "; ".join(reasons))
        self._said = reasons


class Incoming:
    """Weights that have been offered: `DirectTransfer` of the engines' seam."""

    def __init__(self, channel: Channel, offer: Offer, transport: str, limit_s: float) -> None:
        self.transport = transport
        self.digest = offer.digest
        self.shapes: Mapping[str, Sequence[int]] = dict(zip(offer.names, offer.shapes, strict=True))
        self.num_bytes = 0
        """Received, once it is complete."""
        self._channel = channel
        self._limit_s = limit_s

    def run(self, names: Sequence[str], calls: DirectCalls) -> None:
        """Takes those of the names, in this order, by what the trainer's end asks of the engine. Raises TransferError, EngineError."""
        deadline = time.monotonic() + self._limit_s
        self._channel.send(Begin(names=list(names)), ANSWER_S)
        while True:
            message = self._channel.receive(max(0.0, deadline - time.monotonic()))
            if isinstance(message, Sent):
                self.num_bytes = message.num_bytes
                return
            self._perform(expected(message, Call), calls, deadline)

    def _perform(self, call: Call, calls: DirectCalls, deadline: float) -> None:
        try:
            with self._watched(calls, deadline):
                match call.call:
                    case "join":
                        calls.join({"way": self.transport, "info": call.info})
                    case "start":
                        calls.start()
                    case "receive":
                        calls.receive({"way": self.transport, "info": call.info})
                    case "finish":
                        calls.finish()
        except (EngineError, TransferError) as error:
            with contextlib.suppress(TransferError):
                self._channel.send(Failed(error=str(error)[:2_000]), ANSWER_S)
            raise
        self._channel.send(Done(), ANSWER_S)

    @contextlib.contextmanager
    def _watched(self, calls: DirectCalls, deadline: float) -> Iterator[None]:
        """Whoever is inside a collective with a process that has gone would wait for ever."""
        waker, waking = socket.socketpair()

        def watch() -> None:
            match self._channel.wait(deadline - time.monotonic(), waker):
                case "ended":
                    calls.interrupt("the process that hands out weights has gone")
                case "late":
                    calls.interrupt(f"the transfer has not ended within {self._limit_s:g} s (weights.direct_timeout_s)")
                case "woken":
                    pass

        watcher = threading.Thread(target=watch, name="watch-transfer", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            waking.close()
            watcher.join()
            waker.close()


def way_of(wanted: Wanted, end: Taker) -> Choose:
    """How a replica chooses, by what is configured and what it can take."""

    def choose_way(notice: Notice, direct: DirectWeights) -> Choice:
        retained: Retained = "shm" if published_file(notice.uri).is_relative_to(SHARED_MEMORY) else "file"
        return choose(wanted, retained, Giver(direct.machine, direct.devices, direct.transports), end)

    return choose_way
