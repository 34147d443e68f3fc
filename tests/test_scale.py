"""The benchmark of many replicas: that it runs, and that what it plays asks the server for what real replicas ask it for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.scale_load import RUN, Load
from benchmarks.scale_replicas import Replica, World
from benchmarks.scale_server import Server, running
from bus.alive import RENEW
from bus.events import WeightsApplied
from bus.redis_log import APPEND, RedisLog
from services.engines.config import EngineConfig
from services.engines.script import Script
from services.engines.scripted import ScriptedEngine
from services.weights.store import WeightNotice, WeightStore
from tests.conftest import debian_binary
from tests.services.director import Director

REQUESTS = 40
RHYTHMIC = ("xread", "hmget", "xrange", "mget", "info")
"""Asked every now and then, also while nothing happens."""
SIGNS_OF_LIFE = 3
"""So many may come meanwhile, or be the first calls of scripts."""


@dataclass(frozen=True)
class Found:
    """While answers were given."""

    calls: dict[str, int]
    """Of each command."""
    exchanges: int
    """In which the server got them, without those of who waits in vain."""
    connections: int


def real(server: Server, director: Director, notice: WeightNotice) -> Found:
    engine = ScriptedEngine(EngineConfig(max_running_requests=REQUESTS), Script(lambda _: 8, 10_000))
    with director.serving(director.standalone, engine, REQUESTS):
        return asked(server, director, notice)


def simulated(server: Server, director: Director, notice: WeightNotice) -> Found:
    with RedisLog.open(server.url, RUN) as log:
        load = Load(replicas=1, slots=0, tokens_per_s=10_000.0, shortest=4, longest=8)
        world = World(load, server.port, log.log_id, seed=1)
    world.loop.after(0.0, Replica(world, director.standalone).start)
    thread = threading.Thread(target=world.loop.run, args=(lambda: world.ended == 0,))
    thread.start()
    director.wait_until_there(director.standalone)
    found = asked(server, director, notice)
    director.end()
    thread.join(60)
    assert not thread.is_alive()
    world.loop.close()
    return found


def asked(server: Server, director: Director, notice: WeightNotice) -> Found:
    """One request after the other: of several that end together a real replica says so in one append, a simulated one in several."""
    director.outcome(director.update(director.standalone, notice), WeightsApplied)
    director.finished(director.ask(director.standalone, 1, 4))
    before, reads = server.used().commands, exchanges(server)
    for _ in range(REQUESTS):
        director.finished(director.ask(director.standalone, 1, 4))
    reads = exchanges(server) - reads
    calls = {name: count - before.get(name, (0, 0.0))[0] for name, (count, _) in server.used().commands.items()}
    # Each wait in vain is one XREAD and one HMGET.
    reads -= calls["xread"] + calls["hmget"]
    rest = {name: count for name, count in calls.items() if name not in RHYTHMIC}
    return Found(rest, reads, int(server.info("clients")["connected_clients"]))


def exchanges(server: Server) -> int:
    """Up to now: what arrives together is one."""
    return int(server.info("stats")["total_reads_processed"])


def test_a_simulated_replica_asks_the_server_for_what_a_real_one_asks_it_for(tmp_path: Path) -> None:
    found = {}
    for kind in (real, simulated):
        folder = tmp_path / kind.__name__
        with running(debian_binary(), folder / "server") as server, closing(Director(server.url, RUN, folder)) as director:
            server.knows(APPEND, RENEW)
            store = WeightStore(RUN, "file", folder / "weights")
            notice = store.publish({"weight": torch.zeros(1)}, 0, 0, 1)
            found[kind] = kind(server, director, notice)
    true, played = found[real], found[simulated]
    assert true.connections == played.connections
    differing = {
        name: (count, played.calls[name]) for name, count in true.calls.items() if abs(count - played.calls.get(name, 0)) > SIGNS_OF_LIFE
    }
    assert differing == {}
    assert abs(true.exchanges - played.exchanges) < REQUESTS // 2


def test_the_benchmark_of_many_replicas_runs_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.scale", "--quick", "--folder", str(tmp_path), "--server", str(debian_binary())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["answers_per_s"] > 0
    assert result["not_ended"] == []
