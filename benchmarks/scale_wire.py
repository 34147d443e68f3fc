"""Many connections to a server in one thread: what a thousand processes with a few sockets each are to the server.

    Loop ── epoll ──▶ Wire.ask(command, then) ─▶ … ─▶ then(reply)         replies come in the order of the commands, as on every connection
      └── timers ──▶ after(seconds, action)

Commands are packed and scripts are called as `bus.connection` does it. An error from the server ends the process: nothing is tried again.
"""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

import hiredis

from bus.connection import Argument, Reply, Script, pack

RECEIVED = 1 << 18
"""Bytes taken from a socket at a time."""
Then = Callable[[Reply], None]


class Loop:
    """Runs what is ready, and what is due."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wires: dict[int, Wire] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.lag_s = 0.0
        """Longest time by which a timer came late since somebody looked: this process does not get the processor it needs."""

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` once, in so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), action))

    def run(self, goes_on: Callable[[], bool]) -> None:
        """As long as `goes_on` says so."""
        while goes_on():
            patience = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else 1.0
            for number, events in self._epoll.poll(min(patience, 1.0)):
                wire = self._wires[number]
                if events & select.EPOLLOUT:
                    wire.flush()
                if events & ~select.EPOLLOUT:
                    wire.receive()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                at, _, action = heapq.heappop(self._timers)
                self.lag_s = max(self.lag_s, now - at)
                action()

    def close(self) -> None:
        """Ends all connections."""
        for wire in self._wires.values():
            wire.close()
        self._epoll.close()

    def add(self, wire: Wire) -> None:
        self._wires[wire.number] = wire
        self._epoll.register(wire.number, select.EPOLLIN)

    def wants_to_send(self, wire: Wire, wants: bool) -> None:
        self._epoll.modify(wire.number, select.EPOLLIN | (select.EPOLLOUT if wants else 0))


class Wire:
    """One connection."""

    def __init__(self, loop: Loop, port: int) -> None:
        self._loop = loop
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._reader = hiredis.Reader()
        self._waiting: deque[Then] = deque()
        self._unsent = b""
        self._stuck = False
        """The socket has not taken all of it."""
        self.number = self._socket.fileno()
        loop.add(self)

    def ask(self, arguments: Sequence[Argument], then: Then) -> None:
        """Sends a command; `then` gets its reply."""
        self._send((arguments,), (then,))

    def transact(self, commands: Sequence[Sequence[Argument]], then: Then) -> None:
        """Sends commands that nobody comes between; `then` gets the list of their replies."""
        queued = [_pass_over] * (1 + len(commands))
        self._send((("MULTI",), *commands, ("EXEC",)), (*queued, then))

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], then: Then) -> None:
        """Calls a script that the server has."""
        self.ask(("EVALSHA", script.digest, len(keys), *keys, *arguments), then)

    def close(self) -> None:
        self._socket.close()

    def _send(self, commands: Sequence[Sequence[Argument]], thens: Sequence[Then]) -> None:
        self._waiting.extend(thens)
        waited = bool(self._unsent)
        self._unsent += b"".join(map(pack, commands))
        if not waited:
            self.flush()

    def flush(self) -> None:
        """Sends what the socket takes."""
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        self._unsent = self._unsent[sent:]
        if bool(self._unsent) != self._stuck:
            self._stuck = bool(self._unsent)
            self._loop.wants_to_send(self, self._stuck)

    def receive(self) -> None:
        """Takes what is there, and hands out the replies that are whole."""
        data = self._socket.recv(RECEIVED)
        if not data:
            raise SystemExit("the server has closed a connection: its log says why (maxclients?)")
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise SystemExit(f"the server refuses a command: {reply}")
            self._waiting.popleft()(reply)


def _pass_over(reply: Reply) -> None:
    """Of a command in a transaction: that it was taken."""
