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
from bus.blobs import TOGETHER_BYTES
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
REQUESTS = 10
"""Of a rollouter, in one append."""
READERS = 5
PORTIONS_PER_S = 150
"""In which a reader that lets entries gather gets them."""
EXPIRED = 0.4
"""Of a replica's waits for its inbox, a second each: nothing has come."""
ME = Producer("operator", 0)
Action = Callable[[int], object]


def rates(load: Load) -> dict[str, float]:
    """How often a second, by the names of `costs_us`."""
    answers, samples, updates = load.answers_per_s, load.samples_per_s, load.replicas / load.cycle_s
    signs = load.replicas * RENEWALS_PER_TTL / TTL_S
    return {
        "an answer is stored, its outcome appended": answers, "an outcome is appended": updates, "an answer is read": 2 * answers,
        "a sample is stored": samples, "a sample is read": 2 * samples, "a request is appended and mirrored": answers + updates + samples,
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
        requested, finished = example_events(load, self._payloads)[:2]
        assert isinstance(requested, GenerationRequested)
        requests = (requested.model_copy(update={"replica": f"r{number}"}) for number in range(REQUESTS))
        self._requests = [Draft(request, True, 1, 10**18) for request in requests]
        self._outcome = [Draft(finished, False, 1, 10**18)]
        # What several in one call are read for, as `get_blobs` does it.
        self._samples_together = max(1, TOGETHER_BYTES // len(self._payloads.samples[0]))
        self._answers_together = load.answers

    def all(self) -> dict[str, tuple[Action, int]]:
        """Name -> what to call with a number, and how many of what is counted that is."""
        call, keys = self._connection.call, self._keys
        return {
            "an answer is stored, its outcome appended": (self._answer, 1),
            "an outcome is appended": (lambda n: self._others[n % CLIENTS].append(ME, self._outcome), 1),
            "an answer is read": (lambda n: self._read("answer", n, self._answers_together), self._answers_together),
            "a sample is stored": (lambda n: self._blobs.put(f"sample:{n % KEYS}", self._payloads.samples[n % 64]), 1),
            "a sample is read": (lambda n: self._read("sample", n, self._samples_together), self._samples_together),
            "a request is appended and mirrored": (lambda n: self._log.append(ME, self._requests), REQUESTS),
            "an inbox is read, and a prompt": (self._take_request, 1),
            "an inbox has nothing": (lambda n: self._look_into("r999"), 1),
            "a sign of life": (self._renew, 1),
            "ten entries are read": (lambda n: call("XREAD", "COUNT", 10, "STREAMS", keys.log, f"{n + 10}-0"), 1),
            "payloads are removed, each": (self._remove, REMOVED),
        }

    def _answer(self, number: int) -> None:
        payload = self._payloads.answers[number % 64][1]
        self._others[number % CLIENTS].append_with({f"answer:{number % KEYS}": payload}, ME, self._outcome)

    def _read(self, kind: str, number: int, together: int) -> None:
        self._connection.call("MGET", *(self._keys.blob(f"{kind}:{(number + other) % KEYS}") for other in range(together)))

    def _remove(self, number: int) -> None:
        """In the first turns they are there; later their names are looked up in vain, which costs a little less."""
        self._blobs.delete([f"answer:{number * REMOVED + offset}" for offset in range(REMOVED)])

    def _look_into(self, replica: str) -> None:
        """With one item, or none, as `RedisLog.read_inbox` does it."""
        keys = self._keys
        self._connection.exchange(
            ("XREAD", "COUNT", 1, "STREAMS", keys.inbox(replica), "5-0"),
            ("HMGET", keys.meta, "log", "position", f"trimmed:{replica}", "ended"),
            ("XRANGE", keys.log, "5-0", "5-0"),
        )

    def _take_request(self, number: int) -> None:
        self._look_into("r5")
        self._connection.call("GET", self._keys.blob("prompt:1"))

    def _renew(self, number: int) -> None:
        renewing = ("EVALSHA", RENEW.digest, 1, self._keys.alive("replica:r5"), 1, 10_000)
        self._connection.exchange(renewing, ("MGET", self._keys.alive("controller")))


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
        server.knows(RENEW)
        costs = costs_us(server, replace(load, replicas=10))
    cores = {what: costs[what] * often / 1e6 for what, often in rates(load).items()}
    print(f"{name} {'.'.join(map(str, version))}, {given.replicas} replicas")
    for what, often in rates(load).items():
        print(f"{what:<43}{often:>9,.0f} a second{costs[what]:>8.1f} us{100 * cores[what]:>7.1f} % of a core")
    print(f"{'together':<43}{100 * sum(cores.values()):>35.1f} % of a core")
    print(json.dumps({"server_cores": round(sum(cores.values()), 3), "us": {what: round(cost, 1) for what, cost in costs.items()}}))


if __name__ == "__main__":
    main()
