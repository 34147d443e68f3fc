"""Where replicas come for the newest weights: one thread a connection, one transfer at a time.

    accept ──▶ greeting ──▶ Take ▸ Offer ▸ Begin ▸ (its turn) send ▸ Sent ──▶ the next Take …

A connection is one replica's incarnation and its group: when it breaks, the group is given up. A transfer that can only be ended with the
process ends it: see `lost`. Nothing here waits without a limit but for the next `Take` of a replica that is connected.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from bus.errors import TransferError
from services.transfer.channel import Channel
from services.transfer.greeting import be_greeted
from services.transfer.messages import Begin, Hello, Offer, Refused, Sent, Take, Welcome, expected
from services.transfer.replica_calls import ReplicaCalls
from services.transfer.senders import MakeSender, Sender, dtype_names

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 256
SOON_S = 5.0
"""How long a replica that is early waits for a publication that is being made known."""
TURN_S = 30.0
"""How long a replica, which is paused by then, waits for transfers to others."""
ANSWER_S = 10.0
MOST_SAID = 500
"""Of an error from below, in characters: some hold whole tensors."""
GRACE_S = 5.0
"""How long after its limit a transfer may still be there."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One version of the weights, mapped from its file."""

    version: int
    revision: int
    digest: str
    tensors: Mapping[str, torch.Tensor]

    @property
    def number(self) -> tuple[int, int]:
        return self.version, self.revision


class Endpoint:
    """`listener` listens already. `struck`: replica -> why it gets nothing here.

    `lost` is called with replica and reason when only the end of the process can end a transfer, and need not return.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: bytes,
        senders: Mapping[str, MakeSender],
        lost: Callable[[str, str], None],
        limit_s: float,
        struck: Mapping[str, str] | None = None,
    ) -> None:
        self._listener = listener
        self._token = token
        self._senders = senders
        self._lost = lost
        self._limit_s = limit_s
        self._newest: Publication | None = None
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._connected: dict[str, tuple[int, Channel]] = {}
        self._channels: set[Channel] = set()
        self._struck = dict(struck or {})
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="weights", daemon=True)

    def start(self) -> None:
        """Begins to take connections."""
        self._thread.start()

    def publish(self, publication: Publication) -> None:
        """From now on this one is handed out, and no older one."""
        with self._changed:
            self._newest = publication
            self._changed.notify_all()

    def close(self) -> None:
        """Ends every connection."""
        with self._changed:
            self._closing = True
            channels = list(self._channels)
        self._listener.close()
        for channel in channels:
            channel.close()
        self._thread.join(ANSWER_S)

    def _accept(self) -> None:
        while not self._closing:
            try:
                # Closing a listener does not wake whoever waits on it, everywhere.
                self._listener.settimeout(0.2)
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._serve, args=(Channel(connection),), name="weights-of-one", daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        with self._changed:
            full = len(self._channels) >= MOST_CONNECTIONS or self._closing
            if not full:
                self._channels.add(channel)
        try:
            if not full:
                self._attend(channel)
        except TransferError as error:
            logger.info("connection for weights ended: error=%s", error)
        finally:
            with self._changed:
                self._channels.discard(channel)
            channel.close()

    def _attend(self, channel: Channel) -> None:
        hello = be_greeted(channel, self._token)
        if reason := self._admit(hello, channel):
            channel.send(Refused(reason=reason), ANSWER_S)
            return
        channel.send(Welcome(), ANSWER_S)
        session = _Session(channel)
        try:
            while True:
                self._hand_over(hello.replica, session, expected(channel.receive(None), Take))
        finally:
            session.close()

    def _admit(self, hello: Hello, channel: Channel) -> str:
        """Why not, or nothing. An older incarnation of a replica has to go."""
        with self._changed:
            epoch, former = self._connected.get(hello.replica, (hello.epoch, channel))
            if epoch > hello.epoch:
                return f"incarnation {epoch} of {hello.replica} is connected, this is {hello.epoch}"
            self._connected[hello.replica] = (hello.epoch, channel)
        if former is not channel:
            former.close()
        return ""

    def _hand_over(self, replica: str, session: _Session, take: Take) -> None:
        limit_s = min(take.limit_s, self._limit_s)
        try:
            publication = self._find(replica, take)
            sender = session.sender(take, self._senders)
        except TransferError as error:
            session.channel.send(Refused(reason=str(error)), ANSWER_S)
            return
        session.channel.send(_offer(publication), ANSWER_S)
        # Until then the replica may be waiting for what it has in flight.
        begin = expected(session.channel.receive(limit_s), Begin)
        deadline = time.monotonic() + limit_s
        tensors = {name: publication.tensors[name] for name in begin.names if name in publication.tensors}
        if not self._turn.acquire(timeout=min(TURN_S, limit_s)):
            session.channel.send(Refused(reason="others' transfers take too long"), ANSWER_S)
            return
        try:
            self._send(replica, session, sender, tensors, take, deadline)
        finally:
            self._turn.release()

    def _send(
        self, replica: str, session: _Session, sender: Sender, tensors: Mapping[str, torch.Tensor], take: Take, deadline: float
    ) -> None:
        began = time.monotonic()
        calls = ReplicaCalls(session.channel, deadline, None if sender.interruptible else lambda reason: self._lost(replica, reason))
        overdue = threading.Timer(deadline - began + GRACE_S, self._lost, [replica, "the transfer did not end in time"])
        overdue.daemon = True
        try:
            overdue.start()
            sender.send(tensors, take.workers, calls)
        except Exception as error:
            # Whatever it is that went wrong between two devices: the connection ends, and with it the group.
            reason = f"{type(error).__name__}: {error}"[:MOST_SAID]
            if calls.started:
                self._strike(replica, reason)
            raise TransferError(f"weights of version {take.version} did not get to {replica}: {reason}") from error
        finally:
            overdue.cancel()
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        seconds = time.monotonic() - began
        session.channel.send(Sent(num_bytes=num_bytes, seconds=seconds), ANSWER_S)
        logger.info(
            "weights handed over: replica=%s version=%d transport=%s bytes=%d seconds=%.3f",
            replica, take.version, take.transport, num_bytes, seconds,
        )  # fmt: skip

    def _find(self, replica: str, take: Take) -> Publication:
        with self._changed:
            if reason := self._struck.get(replica):
                raise TransferError(f"a transfer to {replica} broke off half-way before ({reason}), so it is not tried again")
            wanted = (take.version, take.revision)
            self._changed.wait_for(lambda: self._newest is not None and self._newest.number >= wanted, SOON_S)
            if self._newest is None or self._newest.number != wanted:
                there = "none" if self._newest is None else f"{self._newest.version}.{self._newest.revision}"
                raise TransferError(f"weights {take.version}.{take.revision} are not the newest here, which are {there}")
            return self._newest

    def _strike(self, replica: str, reason: str) -> None:
        logger.warning("a direct transfer broke off: replica=%s error=%s", replica, reason)
        with self._changed:
            self._struck[replica] = reason


class _Session:
    """What one connection has: its sender, once the first transfer has been asked for."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._sender: Sender | None = None
        self._way: tuple[str, int, tuple[str, ...]] | None = None

    def sender(self, take: Take, senders: Mapping[str, MakeSender]) -> Sender:
        """The one of the last transfer, or a new one that is ready. Raises TransferError."""
        way = (take.transport, take.workers, tuple(take.devices))
        if self._sender is None or self._way != way:
            if take.transport not in senders:
                raise TransferError(f"{take.transport} is not offered, but {', '.join(senders) or 'nothing'}")
            self.close()
            sender = senders[take.transport](take)
            sender.prepare()
            self._sender, self._way = sender, way
        return self._sender

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def _offer(publication: Publication) -> Offer:
    tensors = publication.tensors
    shapes = [list(tensor.shape) for tensor in tensors.values()]
    return Offer(digest=publication.digest, names=list(tensors), dtypes=dtype_names(tensors), shapes=shapes)
