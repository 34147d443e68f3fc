"""How late is what one appends, and another reads at once?    `python -m benchmarks.scale_watch URL RUN FILE`, ended by SIGTERM

    probe    ── a millisecond before ─▶ watcher: reads what has gathered, and waits for what comes
      └──────── appends, every few milliseconds, whatever the watcher does ─▶ log ─▶ watcher: that late

Both go before everybody else who wants a processor. A watcher that read at once all the time would ask a busy server for half as many
reads as all replicas together, and a run has none such.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import msgpack

from bus.connection import Connection
from bus.entry import Draft, Producer
from bus.events import GenerationFinished, WaitSamples
from bus.keys import Keys
from bus.redis_log import RedisLog
from bus.stream import FIELDS
from bus.wire import Reply
from services.shell import BLOCK_MS, READ_LIMIT

PROBE = "operator"
PROBE_S = 0.01
AHEAD_S = 0.001
"""By so much the watcher is awake before the probe."""
OF_PROBE, OF_ANSWER = 1.0, 2.0
KIND, SOURCE, AT, BODY = (1 + 2 * FIELDS.index(field) for field in (b"kind", b"source", b"at", b"body"))
"""Where the fields of an item have them."""
Orders = SimpleQueue[int | None]
"""The number of the probe that comes next; None: there is no other."""


def first() -> None:
    """This thread goes before everybody else who wants the processor; where that may not be, it waits as they do."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return


class Watcher:
    """Reads the log, and notes (when, how late in ms, what) of probes and answers."""

    def __init__(self, url: str, run: str) -> None:
        self.seen = array("d")
        self._connection = Connection(url, answer_s=None)
        self._key = Keys(run).log
        self._position = "0-0"
        self._probe = 0
        """Number of the newest that was read."""

    def watch(self, orders: Orders) -> None:
        first()
        while (probe := orders.get()) is not None:
            while self._probe < probe:
                self._read()

    def _read(self) -> None:
        reply = self._connection.call("XREAD", "COUNT", READ_LIMIT, "BLOCK", BLOCK_MS, "STREAMS", self._key, self._position)
        now = time.monotonic_ns()
        for number, fields in _items(reply):
            self._position = number.decode()
            if fields[SOURCE] == PROBE.encode():
                self._probe = msgpack.unpackb(fields[BODY])["have"]
                self.seen.extend((now / 1e9, (now - int(fields[AT])) / 1e6, OF_PROBE))
            elif fields[KIND] == GenerationFinished.kind.encode():
                self.seen.extend((now / 1e9, (now - int(fields[AT])) / 1e6, OF_ANSWER))


def _items(reply: Reply) -> list[tuple[bytes, list[bytes]]]:
    return [] if reply is None else cast("list[tuple[bytes, list[tuple[bytes, list[bytes]]]]]", reply)[0][1]


class Probe:
    """Appends one entry after the other, until it is ended."""

    def __init__(self, url: str, run: str, orders: Orders) -> None:
        self.ending = False
        self._log, self._me = RedisLog.open(url, run), Producer(PROBE, 0)
        self._orders = orders

    def run(self) -> None:
        first()
        number, pauses = 0, random.Random(1)
        while not self.ending:
            time.sleep(2 * PROBE_S * pauses.random())
            number += 1
            self._orders.put(number)
            time.sleep(AHEAD_S)
            self._log.append(self._me, [Draft(WaitSamples(step=1, need=1, have=number), False, 0, time.monotonic_ns())])
        self._orders.put(None)

    def end(self) -> None:
        self.ending = True


def main(arguments: Sequence[str]) -> None:
    url, run, file = arguments
    orders: Orders = SimpleQueue()
    probe, watcher = Probe(url, run, orders), Watcher(url, run)
    signal.signal(signal.SIGTERM, lambda number, frame: probe.end())
    thread = threading.Thread(target=watcher.watch, args=(orders,))
    thread.start()
    probe.run()
    thread.join()
    with Path(file).open("wb") as out:
        watcher.seen.tofile(out)


if __name__ == "__main__":
    main(sys.argv[1:])
