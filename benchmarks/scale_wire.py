"""Many connections to a server in one thread: what a thousand processes with a few sockets each are to the server.

    Loop ── epoll ──▶ reply = await Wire.ask(command)          replies come in the order of the commands, as on every connection
      └── timers ──▶ await Loop.sleep(seconds), after(seconds, action)

A routine is a coroutine that waits for nothing else. Commands are packed as `bus.wire` packs them. An error from the server ends the
process: nothing is tried again.
"""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from itertools import count
from typing import TypeAlias, cast

import hiredis

from bus.wire import Argument, Reply, pack

RECEIVED = 1 << 18
"""Bytes taken from a socket at a time."""
Command: TypeAlias = Sequence[Argument]
Then: TypeAlias = Callable[[Reply], None]


class Wait:
    """What a routine waits for: `begin` is given what to call when it is there."""

    def __init__(self, begin: Callable[[Then], None]) -> None:
        self.begin = begin

    def __await__(self) -> Generator[Wait, Reply, Reply]:
        return (yield self)


Routine: TypeAlias = Coroutine[Wait, Reply, None]


def begin(routine: Routine) -> None:
    """Lets it run until it waits, and goes on with it whenever what it waits for is there."""

    def go_on(reply: Reply) -> None:
        try:
            wait = routine.send(reply)
        except StopIteration:
            return
        wait.begin(go_on)

    go_on(None)


class Loop:
    """Runs what is ready, and what is due."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wires: dict[int, Wire] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.received = memoryview(bytearray(RECEIVED))
        """Where connections take in what has come for them."""
        self.lag_s = 0.0
        """Longest time by which a timer came late since somebody looked: this process does not get the processor it needs."""

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` once, in so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), action))

    def sleep(self, seconds: float) -> Wait:
        return Wait(lambda then: self.after(seconds, lambda: then(None)))

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
        self._expected: deque[tuple[int, bool, Then]] = deque()
        """Of each exchange: how many replies it has, whether all of them are wanted or the last one, and by whom."""
        self._got: list[Reply] = []
        """Of the oldest exchange."""
        self._unsent = b""
        self._stuck = False
        """The socket has not taken all of it."""
        self.number = self._socket.fileno()
        loop.add(self)

    def ask(self, *command: Argument) -> Wait:
        """Sends a command; its reply."""
        return self.send(pack(command))

    def exchange(self, *commands: Command) -> Wait:
        """Sends commands at once, each carried out by itself; the list of their replies."""
        return self.send(b"".join(map(pack, commands)), len(commands), whole=True)

    def transact(self, *commands: Command) -> Wait:
        """Sends commands that nobody comes between; the list of their replies."""
        return self.send(b"".join(map(pack, (("MULTI",), *commands, ("EXEC",)))), 2 + len(commands))

    def send(self, data: bytes, replies: int = 1, whole: bool = False) -> Wait:
        """Sends packed commands, as many as `replies`; the last reply, or, if `whole`, the list of all."""

        def start(then: Then) -> None:
            self._expected.append((replies, whole, then))
            waited = bool(self._unsent)
            self._unsent += data
            if not waited:
                self.flush()

        return Wait(start)

    def close(self) -> None:
        self._socket.close()

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
        place = self._loop.received
        taken = self._socket.recv_into(place)
        if not taken:
            raise SystemExit("the server has closed a connection: its log says why (maxclients?)")
        self._reader.feed(cast(bytes, place), 0, taken)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise SystemExit(f"the server refuses a command: {reply}")
            self._hand_out(reply)

    def _hand_out(self, reply: Reply) -> None:
        replies, whole, then = self._expected[0]
        self._got.append(reply)
        if len(self._got) == replies:
            self._expected.popleft()
            got, self._got = self._got, []
            then(got if whole else reply)
