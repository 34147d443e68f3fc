"""Swings in a row on a pair of replicas with the real vLLM: nothing is lost or said twice, and memory stays level.

    python -m benchmarks.vllm_swings [--swings 500]

    this process: trainer, rollouter and controller, played ─▶ embedded server ─▶ standalone replica, a process with its vLLM
                                                                              └▶ hybrid replica, another

The standalone one always has requests in flight, and takes new weights every few swings; the hybrid one is woken with weights, given
requests, aborted and put to sleep, with more requests sent behind the sleep. Then the time is taken from an abort of 256 requests, and of
2,048, to the last outcome in the log. The model is tiny and the device a CPU: what is measured is what a swing costs, not generation.
The last line is one JSON object; exit status 1 when anything was lost or doubled, an abort took over 1 s, or memory grew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.level import MIB, Gauge, say
from benchmarks.runs import quantile, scratch
from bus.embedded import EmbeddedServer
from bus.events import GenerationFinished, ReplicaAsleep, ReplicaAwake, WeightsApplied
from bus.redis_log import RedisLog
from bus.sources import REPLICA
from services.context import make_context, read_plan
from services.engines.config import EngineConfig
from services.engines.protocol import Sampling
from services.engines.vllm_processes import descendants
from services.launcher.protocol import RunPlace, ServiceSpec
from services.weights.store import WeightNotice, WeightStore
from tests.services.director import Director

RUN = "vllm-swings"
ROWS = 256
LENGTH = 512
VOCAB = 32
LONG = 400
"""Tokens of a request that does not end before it is aborted."""
STANDALONE, HYBRID, SHORT, LATE = 16, 24, 8, 4
"""Requests in flight on the one, given to the other in each swing, of these short ones, and behind its sleep."""
UPDATE_EVERY = 10
GROWN_MIB = 8.0
"""How much the largest of the last quarter may be over that of the second; the first one holds what is allocated once."""
ABORT_S = 1.0


def serve(url: str, name: str, folder: Path, core: int) -> None:
    """Is one replica, until the run has ended."""
    from services.engines.vllm import VllmEngine
    from services.replica.shell import Replica
    from tests.services.engines.vllm_factories import vllm_model

    os.sched_setaffinity(0, {core})
    os.environ["OMP_NUM_THREADS"] = "1"
    model = folder / f"model-{name}"
    vllm_model(VOCAB).save_pretrained(model)
    config = EngineConfig(kind="vllm", max_running_requests=ROWS, max_model_len=LENGTH, dtype="float32")
    context = make_context(RunPlace(url, RUN, folder), ServiceSpec(REPLICA, name), read_plan(url, RUN, folder), "benchmark")
    Replica(context, VllmEngine(config, model), Sampling(), Sampling(), slots=ROWS).run()


@dataclass
class Pair:
    """Both replicas, and what was asked of them."""

    director: Director
    store: WeightStore
    weights: list[dict[str, object]]
    version: int = 0
    asked: list[int] = field(default_factory=list)
    """In flight on the standalone one."""
    outcomes: Counter[str] = field(default_factory=Counter)
    wake_s: list[float] = field(default_factory=list)
    sleep_s: list[float] = field(default_factory=list)

    def publish(self) -> WeightNotice:
        """The next version; the one before the last is gone."""
        self.version += 1
        notice = self.store.publish(self.weights[self.version % 2], self.version, 0, 1)  # type: ignore[arg-type]  # tensors
        self.store.retire([notice.uri])
        return notice

    def update(self) -> None:
        """The standalone one, with requests in flight."""
        name = self.director.standalone
        self.director.outcome(self.director.update(name, self.publish()), WeightsApplied)

    def keep_busy(self) -> None:
        """As many in flight on the standalone one as ever."""
        self.director.read()
        done = [position for position in self.asked if position in self.director.outcomes]
        self.close(done)
        self.asked = [position for position in self.asked if position not in set(done)]
        self.asked += self.director.ask(self.director.standalone, STANDALONE - len(self.asked), 60)

    def swing(self, number: int) -> None:
        """One lend of the hybrid one."""
        name, director = self.director.hybrid, self.director
        woken = director.wake(name, number, self.publish())
        asked = director.ask(name, SHORT, 10) + director.ask(name, HYBRID - SHORT, LONG)
        self.wake_s.append(director.outcome(woken, ReplicaAwake).seconds)
        director.finished(asked[:SHORT])
        director.abort(name)
        asleep = director.sleep(name)
        late = director.ask(name, LATE, LONG)
        self.sleep_s.append(director.outcome(asleep, ReplicaAsleep).seconds)
        self.close([*asked, *late])

    def close(self, positions: Sequence[int]) -> None:
        """Waits for their outcomes and removes what they left on the server."""
        self.outcomes.update(event.outcome for event in self.director.finished(positions))
        self.director.forget(positions)

    def abort(self, count: int) -> float:
        """Seconds from an abort of so many requests to the last one's outcome, by the log."""
        director, name = self.director, self.director.standalone
        asked = director.ask(name, count, LONG)
        # Some tokens of the first are there once a short one behind them has run, or, with more than run together, soon.
        time.sleep(1.0)
        director.read()
        assert not any(position in director.outcomes for position in asked), "they ended by themselves: make them longer"
        began = time.time_ns()
        director.abort(name)
        director.finished(asked)
        seconds = (max(director.outcomes[position][0].at for position in asked) - began) / 1e9
        self.close(asked)
        return seconds


@contextmanager
def replicas(url: str, director: Director, folder: Path) -> Iterator[dict[str, int]]:
    """Both, each a process on a core of its own: name -> pid."""
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "benchmarks.vllm_swings", "--url", url, "--folder", str(folder)]
    names = (director.standalone, director.hybrid)
    processes = {
        name: subprocess.Popen([*command, "--replica", name, "--core", str(cores[number % len(cores)])])
        for number, name in enumerate(names)
    }
    try:
        for name in names:
            director.wait_until_there(name)
        yield {name: process.pid for name, process in processes.items()}
        director.end()
        for process in processes.values():
            process.wait(60.0)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def measure(swings: int, folder: Path) -> dict[str, object]:
    """Runs it; returns the result."""
    from tests.services.engines.factories import random_model, weights_of
    from tests.services.engines.vllm_factories import vllm_model

    weights = [{n: t for n, t in weights_of(random_model(vllm_model(VOCAB), seed)).items() if n != "lm_head.weight"} for seed in (1, 2)]
    gauge, store = Gauge(), WeightStore(RUN, "auto", folder / "weights")
    with EmbeddedServer(folder / "server") as server:
        director = Director(server.url, RUN, folder)
        pair = Pair(director, store, [dict(each) for each in weights])
        with replicas(server.url, director, folder) as pids:
            pair.update()
            began = time.monotonic()
            for number in range(1, swings + 1):
                pair.keep_busy()
                if number % UPDATE_EVERY == 0:
                    pair.update()
                pair.swing(number)
                if number % max(1, swings // 60) == 0:
                    gauge.note((number - 1) / swings, memory(pids))
                say(f"{number} of {swings} swings, {time.monotonic() - began:.0f} s")
            seconds = time.monotonic() - began
            pair.close(pair.asked)
            aborts = {str(count): round(max(pair.abort(count) for _ in range(3)), 3) for count in (ROWS, 2048)}
        lost, doubled = books(server.url)
        failed = {name: event.error for name, event in director.failures.items()}
        director.close()
    store.purge()
    grown = [name for name, values in gauge.largest.items() if values[3] > values[1] + GROWN_MIB]
    return {
        "swings": swings, "seconds": round(seconds, 1), "seconds_per_swing": round(seconds / swings, 3),
        "wake_s": {share: round(quantile(pair.wake_s, float(share)), 3) for share in ("0.5", "0.99")},
        "sleep_s": {share: round(quantile(pair.sleep_s, float(share)), 3) for share in ("0.5", "0.99")},
        "outcomes": dict(pair.outcomes), "lost": lost, "doubled": doubled, "failed": failed, "abort_s": aborts,
        "largest_mib": {name: [round(value, 1) for value in values] for name, values in gauge.largest.items()}, "grown": grown,
        "ok": not (lost or doubled or failed or grown or max(aborts.values()) > ABORT_S),
    }  # fmt: skip


def memory(pids: dict[str, int]) -> dict[str, float]:
    """MiB of each process of each replica, what they share divided among them."""
    return {f"{name}.{place}": pss(process.pid) for name, pid in pids.items() for place, process in enumerate(descendants([pid]))}


def pss(pid: int) -> float:
    """Proportional set size; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) * 1024 / MIB for line in lines if line.startswith("Pss:"))


def books(url: str) -> tuple[int, int]:
    """Requests without an outcome, and with more than one, by the whole log."""
    asked, ended, position = 0, Counter[tuple[str, int]](), 0
    with RedisLog.open(url, RUN) as log:
        while entries := log.read(position, 1000):
            position = entries[-1].position
            asked += sum(entry.event.kind == "GenerationRequested" for entry in entries)
            ended.update((e.event.request, e.event.attempt) for e in entries if isinstance(e.event, GenerationFinished))
    return asked - len(ended), sum(count > 1 for count in ended.values())


def main() -> None:
    """Prints a table, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--swings", type=int, default=500)
    parser.add_argument("--replica", help="be this replica")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--url")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.replica:
        serve(given.url, given.replica, given.folder, given.core)
        return
    result = measure(given.swings, given.folder or scratch("vllm-swings"))
    largest = result["largest_mib"]
    assert isinstance(largest, dict)
    for name, values in largest.items():
        print(f"{name:<12}" + "".join(f"{value:>10.1f}" for value in values) + "  MiB")
    print(json.dumps(result))
    sys.exit(not result["ok"])


if __name__ == "__main__":
    main()
