"""The sums for the server: what each command of a run costs it, times how often 1,000 replicas have it called.

    python -m benchmarks.scale_commands [--replicas 1000] [--server redis-server]

One command after the other, so nothing is saved by several that arrive together: a busy server needs somewhat less. The processor time is
the server's own, as the kernel counts it, with what the network and the append-only file take. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from benchmarks.level import say
from benchmarks.scale import new_log
from benchmarks.scale_load import RUN, Load, Payloads, example_events
from benchmarks.scale_server import Server, running
from bus.alive import RENEW, RENEWALS_PER_TTL, TTL_S
from bus.connection import Connection
from bus.embedded import find_binary, program_version
from bus.entry import Draft, Producer
from bus.events import GenerationRequested
from bus.keys import Keys
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog

CALLS = 3_000
KEYS = 200
"""That are written again and again, as memory that is freed is used again."""
CLIENTS = 50
REMOVED = 10
READERS = 5
PORTIONS_PER_S = 150
"""In which a reader that lets entries gather gets them."""
EXPIRED = 0.4
"""Of a replica's waits for its inbox, a second each: nothing has come."""
ME = Producer("operator", 0)


def rates(load: Load) -> dict[str, float]:
    """Calls a second, by the names of `costs_us`."""
    answers, samples, updates = load.answers_per_s, load.samples_per_s, load.replicas / load.cycle_s
    signs = load.replicas * RENEWALS_PER_TTL / TTL_S
    return {
        "an answer is stored": answers, "an answer is read": 2 * answers, "a sample is stored": samples, "a sample is read": 2 * samples,
        "an outcome is appended": answers + updates, "a request is appended and mirrored": answers + updates + samples,
        "an inbox is read, and a prompt": answers + updates, "an inbox has nothing": EXPIRED * load.replicas,
        "a sign of life": signs, "ten entries are read": READERS * PORTIONS_PER_S, "payloads are removed, each": answers + 2 * samples,
    }  # fmt: skip


class Calls:
    """What is called, on a server with a log."""

    def __init__(self, server: Server, load: Load, stack: ExitStack) -> None:
        self._keys = Keys(RUN)
        self._payloads = Payloads.of(load)
        self._log = stack.enter_context(new_log(server.url, RUN, load))
        self._others = [stack.enter_context(RedisLog.open(server.url, RUN)) for _ in range(CLIENTS)]
        self._connection = stack.enter_context(closing(Connection(server.url)))
        self._blobs = stack.enter_context(closing(RedisBlobs(server.url, RUN)))
        requested, self._finished = example_events(load, self._payloads)[:2]
        assert isinstance(requested, GenerationRequested)
        requests = (requested.model_copy(update={"replica": f"r{number}"}) for number in range(10))
        self._ten = [Draft(request, True, 1, 10**18) for request in requests]

    def all(self) -> dict[str, tuple[Callable[[int], object], int]]:
        """Name -> what to call with a number, and how many of what is counted that is."""
        blobs, payloads, call, keys = self._blobs, self._payloads, self._connection.call, self._keys
        return {
            "an answer is stored": (lambda n: blobs.put(f"answer:{n % KEYS}", payloads.answers[n % 64][1]), 1),
            "an answer is read": (lambda n: blobs.get(f"answer:{n % KEYS}"), 1),
            "a sample is stored": (lambda n: blobs.put(f"sample:{n % KEYS}", payloads.samples[n % 64]), 1),
            "a sample is read": (lambda n: blobs.get(f"sample:{n % KEYS}"), 1),
            "an outcome is appended": (lambda n: self._others[n % CLIENTS].append(ME, [Draft(self._finished, False, 1, 10**18)]), 1),
            "a request is appended and mirrored": (lambda n: self._log.append(ME, self._ten), len(self._ten)),
            "an inbox is read, and a prompt": (self._read_inbox, 1),
            "an inbox has nothing": (self._find_nothing, 1),
            "a sign of life": (self._renew, 1),
            "ten entries are read": (lambda n: call("XREAD", "COUNT", 10, "STREAMS", keys.log, f"{n + 10}-0"), 1),
            "payloads are removed, each": (
                lambda n: blobs.delete([f"answer:{n * 10 + k}" for k in range(10)] if n < KEYS // 10 else ["x"]),
                10,
            ),
        }

    def _remove(self, number: int) -> None:
        """In the first turns they are there; later their names are looked up in vain, which costs a little less."""
        self._blobs.delete([f"answer:{number * REMOVED + offset}" for offset in range(REMOVED)])

    def _read_inbox(self, number: int) -> None:
        call, keys = self._connection.call, self._keys
        call("XREAD", "COUNT", 1, "STREAMS", keys.inbox("r5"), f"{number}-0")
        call("HMGET", keys.meta, "log", "position", "trimmed:r5", "ended")
        call("GET", keys.blob("prompt:1"))

    def _find_nothing(self, number: int) -> None:
        call, keys = self._connection.call, self._keys
        call("XREAD", "COUNT", 1, "STREAMS", keys.inbox("r999"), f"{number}-0")
        call("HMGET", keys.meta, "log", "position")
        call("XRANGE", keys.log, "5-0", "5-0")
        call("HMGET", keys.meta, "log", "position", "trimmed:r999", "ended")

    def _renew(self, number: int) -> None:
        self._connection.run(RENEW, [self._keys.alive("replica:r5")], [1, 10_000])
        self._connection.call("MGET", self._keys.alive("controller"))


def costs_us(server: Server, load: Load) -> dict[str, float]:
    """Microseconds of the server's time for each."""
    found = {}
    with ExitStack() as stack:
        for name, (action, count) in Calls(server, load, stack).all().items():
            say(name)
            for number in range(KEYS):
                action(number)
            before = server.used().cpu_s
            for number in range(CALLS):
                action(number)
            found[name] = 1e6 * (server.used().cpu_s - before) / CALLS / count
    return found


def main() -> None:
    """Prints the sums, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--server", type=Path, help="its program; else the one that a run would start")
    given = parser.parse_args()
    load = Load(replicas=given.replicas)
    binary = given.server or find_binary()
    name, version = program_version(binary)
    with tempfile.TemporaryDirectory() as folder, running(binary, Path(folder) / "server") as server:
        server.goes_first()
        costs = costs_us(server, replace(load, replicas=10))
    cores = {what: costs[what] * often / 1e6 for what, often in rates(load).items()}
    print(f"{name} {'.'.join(map(str, version))}, {given.replicas} replicas")
    for what, often in rates(load).items():
        print(f"{what:<36}{often:>9,.0f} a second{costs[what]:>8.1f} us{100 * cores[what]:>7.1f} % of a core")
    print(f"{'together':<36}{100 * sum(cores.values()):>35.1f} % of a core")
    print(json.dumps({"server_cores": round(sum(cores.values()), 3), "us": {what: round(cost, 1) for what, cost in costs.items()}}))


if __name__ == "__main__":
    main()
