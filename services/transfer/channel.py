"""Messages over one TCP connection, each with its length in front; every wait has a limit.

4 bytes (big endian): length n    n bytes: the message
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from typing import Literal

from bus.errors import TransferError
from services.transfer.messages import Message, decode, encode

LENGTH = struct.Struct(">I")
SMALL = 4096
"""Longest message that is read from somebody who has not proved yet who it is."""
LARGE = 64 << 20
"""Longest message at all: names and shapes of some hundred thousand tensors."""
CONNECT_S = 5.0


class Channel:
    """One end of a connection. One thread sends and receives; `wait` and `close` are for any."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.longest = SMALL

    @classmethod
    def connect(cls, address: str) -> Channel:
        """To `host:port`. Raises TransferError."""
        host, _, port = address.rpartition(":")
        try:
            return cls(socket.create_connection((host, int(port)), CONNECT_S))
        except (OSError, ValueError) as error:
            raise TransferError(f"nobody hands out weights at {address}: {error}") from error

    def send(self, message: Message, timeout_s: float) -> None:
        """Raises TransferError if it does not get away in time."""
        data = encode(message)
        if len(data) > LARGE:
            raise TransferError(f"{message.kind} has {len(data)} bytes, at most {LARGE} go in one message")
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise TransferError(f"{message.kind} could not be sent: {error or type(error).__name__}") from error

    def receive(self, timeout_s: float | None) -> Message:
        """The next message; None waits as long as the connection lasts. Raises TransferError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline))
        if length > self.longest:
            raise TransferError(f"a message of {length} bytes is announced, at most {self.longest} are taken here")
        return decode(self._read(length, deadline))

    def wait(self, timeout_s: float, waker: socket.socket | None = None) -> Literal["ended", "woken", "late"]:
        """Until the other end has gone, or speaks though it is not its turn; or `waker` has something to read; or so long."""
        watched = [self._socket, *([] if waker is None else [waker])]
        poll = select.poll()
        try:
            for connection in watched:
                poll.register(connection, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(max(0, round(timeout_s * 1000)))}
        except (OSError, ValueError):
            return "ended"
        if waker is not None and waker.fileno() in ready:
            return "woken"
        return "ended" if ready else "late"

    def close(self) -> None:
        """The other end notices."""
        with contextlib.suppress(OSError):  # it may have gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, count: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < count:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TransferError(f"{len(data)} of {count} bytes came in time from the other end")
            try:
                self._socket.settimeout(left)
                part = self._socket.recv(min(count - len(data), 1 << 20))
            except OSError as error:
                raise TransferError(f"nothing came in time from the other end: {error or type(error).__name__}") from error
            if not part:
                raise TransferError("the other end has closed the connection")
            data += part
        return bytes(data)
