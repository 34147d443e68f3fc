"""How far one server goes: 1,000 replicas with 64 requests each at the rates of real ones, all services, and a recording.

    python -m benchmarks.scale [--replicas 1000] [--seconds 40] [--warm-up 140] [--server redis-server] [--server-disk DIR] [--quick]

    replicas (5 connections each) ─▶ server on a TCP port ◀─ services: rollouter, trainer, controller, policy          the real archiver
                                      ▲           └─▶ watcher: how late is what it reads?       (benchmarks/scale_watch.py)
                                    probe: an append every 11 ms

Replicas and services compute nothing and ask the server for what real ones ask it for (benchmarks/scale_played.py). The server and the two
that measure go before everybody else who wants a processor, as if they had one to themselves. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.level import MIB, Gauge, say
from benchmarks.runs import quantile, scratch
from benchmarks.scale_load import RUN, Load
from benchmarks.scale_processes import LOOK_S, Processes
from benchmarks.scale_server import Server, Used, running
from benchmarks.scale_watch import OF_ANSWER, OF_PROBE
from bus.alive import RENEW
from bus.embedded import find_binary, program_version
from bus.entry import Draft, Producer
from bus.events import RunEnded
from bus.redis_log import APPEND, RedisLog
from bus.trimming import REPORT, Trimming
from services.config_file import make_config
from services.plan import plan_run

IDLE_RUN = "idle"
PLAYED = ("services", "replicas")
IDLE_ENTRIES = 400
WARM_UP_S = 140.0
"""After the replicas are full: the longest answer of the first samples takes 100 s, and samples are kept for four cycles of 8 s."""
FILL_S = 120.0
SETTINGS = {
    "model": {"path": "scripted"}, "rollout": {"engine": "scripted"}, "devices": "unpinned",
    "async_training": {"total_steps": 10**6},
}  # fmt: skip


@dataclass(frozen=True)
class Window:
    """What was seen of the server between two moments."""

    before: Used
    after: Used
    first: int
    last: int
    """Newest positions then."""
    memory: Gauge
    facts: dict[str, str]
    behind: dict[str, int]
    """Of each consumer, at the end: entries that it has not got or not put away yet. The trainer's is that of its newest checkpoint."""
    load_average: float
    cores: dict[str, float]
    """Of each process beside the server."""
    stalls: dict[str, list[float]]

    @property
    def seconds(self) -> float:
        return self.after.at - self.before.at


def new_log(url: str, run: str, load: Load) -> RedisLog:
    plan = plan_run(make_config(SETTINGS, "the benchmark"), run)
    return RedisLog.create(url, plan.model_copy(update={"standalone": load.names, "hybrid": ()}), time.time_ns())


def end(log: RedisLog) -> None:
    log.append(Producer("controller", 0), [Draft(RunEnded(reason="completed"), False, 0, time.monotonic_ns())])


def measure(binary: Path, folder: Path, server_folder: Path, load: Load, seconds: float, warm_up_s: float) -> dict[str, object]:
    """Runs it; returns the result."""
    processes = Processes(folder)
    with running(binary, server_folder) as server:
        goes_first = server.goes_first()
        try:
            idle = idle_latency(server, processes, load)
            found = under_load(server, processes, load, seconds, warm_up_s)
        finally:
            processes.kill()
    return {"idle_ms": idle, **found, "server_goes_first": goes_first}


def idle_latency(server: Server, processes: Processes, load: Load) -> dict[str, float]:
    """Of a log that nobody else uses, on a server that does nothing else."""
    with new_log(server.url, IDLE_RUN, load) as log:
        file = processes.folder / "idle.f64"
        processes.start("probe", "benchmarks.scale_watch", server.url, IDLE_RUN, str(file))
        while log.last_position() < IDLE_ENTRIES:
            processes.check()
            say(f"measuring an idle log: {log.last_position()} of {IDLE_ENTRIES} entries")
            time.sleep(LOOK_S)
        processes.end("probe")
        end(log)
    return shares(read_between(file, 0.0, float("inf")).probed)


def under_load(server: Server, processes: Processes, load: Load, seconds: float, warm_up_s: float) -> dict[str, object]:
    with new_log(server.url, RUN, load) as log:
        file = processes.folder / "load.f64"
        start_all(server, processes, load, log.log_id, file)
        fill(log, processes, load)
        processes.pause(warm_up_s, "warming up")
        window = look(server, log, processes, seconds)
        processes.end("probe")
        end(log)
        ended = time.monotonic()
        late = processes.wait()
        end_s = time.monotonic() - ended
    read = read_between(file, window.before.at, window.after.at)
    return {
        "planned_answers_per_s": round(load.answers_per_s),
        "answers_per_s": round(read.answers / window.seconds),
        **seen(window), "probe_ms": shares(read.probed), "end_s": round(end_s, 1), "not_ended": late,
        "late_ms": lateness(processes.folder, window.before.at, window.after.at),
    }  # fmt: skip


def look(server: Server, log: RedisLog, processes: Processes, seconds: float) -> Window:
    server.watches_stalls()
    before, first, gauge, cpu_s = server.used(), log.last_position(), Gauge(), processes.cpu_s()
    while (done := time.monotonic() - before.at) < seconds:
        processes.check()
        memory = server.info("memory")
        gauge.note(done / seconds, {"used": int(memory["used_memory"]) / MIB, "resident": int(memory["used_memory_rss"]) / MIB})
        say(f"measuring: {done:.0f} of {seconds:g} s, {log.last_position()} entries")
        time.sleep(LOOK_S)
    after, last, stalls = server.used(), log.last_position(), server.stalls()
    cores = {name: (spent - cpu_s[name]) / (after.at - before.at) for name, spent in processes.cpu_s().items()}
    with closing(Trimming(server.url, RUN, log.log_id)) as trimming:
        behind = {who: last - position for who, position in trimming.positions().items()}
    facts = {**server.info("clients"), **server.info("stats"), **server.info("persistence")}
    return Window(before, after, first, last, gauge, facts, behind, os.getloadavg()[0], cores, stalls)


def seen(window: Window) -> dict[str, object]:
    """What a window shows, in numbers to be read."""
    facts = window.facts
    return {
        "seconds": round(window.seconds, 1), "entries_per_s": round((window.last - window.first) / window.seconds),
        **used_between(window.before, window.after),
        "memory_mib": {name: [round(value) for value in values] for name, values in window.memory.largest.items()},
        "connections": int(facts["connected_clients"]), "fork_ms": int(facts["latest_fork_usec"]) / 1e3,
        "rewrites": int(facts["aof_rewrites"]), "behind": window.behind, "load_average": round(window.load_average, 1),
        "cores": {name: round(cores, 3) for name, cores in window.cores.items()}, "stalls": window.stalls,
    }  # fmt: skip


def start_all(server: Server, processes: Processes, load: Load, log_id: str, file: Path) -> None:
    server.knows(APPEND, RENEW, REPORT)
    arguments = ("archiver", "--run", RUN, "--folder", str(processes.folder / RUN))
    (processes.folder / RUN).mkdir()
    processes.start("archiver", "services.entry", *arguments, environment={"REDIS_URL": server.url})
    processes.start("probe", "benchmarks.scale_watch", server.url, RUN, str(file))
    for who in PLAYED:
        processes.start(who, "benchmarks.scale_played", who, load.json(), str(server.port), log_id)


def fill(log: RedisLog, processes: Processes, load: Load) -> None:
    """Until every slot of every replica is taken."""
    give_up = time.monotonic() + FILL_S
    while (position := log.last_position()) < load.replicas * load.slots:
        processes.check()
        if time.monotonic() > give_up:
            raise SystemExit(f"the replicas are not filled after {FILL_S:g} s: the log is at {position}")
        say(f"filling: {position} of more than {load.replicas * load.slots} entries")
        time.sleep(LOOK_S)


def used_between(before: Used, after: Used) -> dict[str, object]:
    seconds = after.at - before.at
    calls = {}
    for name, (count, spent) in after.commands.items():
        count_before, spent_before = before.commands.get(name, (0, 0.0))
        if count - count_before > seconds:
            calls[name] = [round((count - count_before) / seconds), round((spent - spent_before) / seconds / 1e4, 1)]
    return {
        "server_cores": round((after.cpu_s - before.cpu_s) / seconds, 3),
        "server_waited": round((after.waited_s - before.waited_s) / seconds, 3),
        "rewrite_cores": round((after.children_s - before.children_s) / seconds, 3),
        "out_mb_per_s": round((after.sent - before.sent) / seconds / 1e6, 1),
        "in_mb_per_s": round((after.received - before.received) / seconds / 1e6, 1),
        "calls_per_s_and_percent": dict(sorted(calls.items(), key=lambda item: -item[1][1])),
    }


@dataclass(frozen=True)
class Read:
    """What the watcher read between two moments: how late in ms the probe's entries were, and how many answers there were."""

    probed: list[float]
    answers: int


def read_between(file: Path, first: float, last: float) -> Read:
    found = array("d")
    found.frombytes(file.read_bytes())
    inside = [(late, what) for at, late, what in zip(found[::3], found[1::3], found[2::3], strict=True) if first <= at <= last]
    return Read([late for late, what in inside if what == OF_PROBE], sum(what == OF_ANSWER for _, what in inside))


def shares(values: Sequence[float]) -> dict[str, float]:
    return {name: round(quantile(values, share), 2) for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))}


def lateness(folder: Path, first: float, last: float) -> dict[str, float]:
    """The longest by which the played ones were late, in ms: then they have not got the processor that they need."""
    found = {}
    for who in PLAYED:
        said = (map(float, line.split()) for line in (folder / f"{who}.log").read_text().splitlines())
        found[who] = round(max((late for at, late in said if first <= at <= last), default=0.0) * 1e3, 1)
    return found


def show(result: dict[str, object]) -> None:
    """What decides, for people."""
    rows = (
        ("answers a second; of planned ones", f"{result['answers_per_s']}; {result['planned_answers_per_s']}"),
        ("entries a second", result["entries_per_s"]),
        ("server, cores (bar 0.5); while it rewrites its file", f"{result['server_cores']}; {result['rewrite_cores']}"),
        ("append to read, ms (bar of p99: 5)", result["probe_ms"]),
        ("the same with nothing else on the server", result["idle_ms"]),
        ("memory of the server by quarter, MiB", result["memory_mib"]),
    )
    for name, value in rows:
        print(f"{name:<54} {value}")


def main() -> None:
    """Prints what was measured, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument(
        "--warm-up", type=float, default=WARM_UP_S, metavar="SECONDS", help="after the replicas are full (default: %(default)g)"
    )
    parser.add_argument("--server", type=Path, help="its program; else the one that a run would start")
    parser.add_argument("--folder", type=Path, help="of the recording, and of all else that has no other")
    parser.add_argument("--server-disk", type=Path, help="a folder on the disk that the server's file is to be on; else that of --folder")
    parser.add_argument("--quick", action="store_true", help="a few replicas for a few seconds: whether it works")
    given = parser.parse_args()
    load, seconds, warm_up_s = Load(replicas=given.replicas), given.seconds, given.warm_up
    if given.quick:
        load, seconds, warm_up_s = Load(replicas=8, tokens_per_s=4_000.0, step_samples=32), 2.0, 0.5
    binary = given.server or find_binary()
    name, version = program_version(binary)
    folder = given.folder or scratch("scale")
    try:
        result = {"server": f"{name} {'.'.join(map(str, version))}", "replicas": load.replicas}
        with tempfile.TemporaryDirectory(dir=given.server_disk or folder) as of_server:
            result |= measure(binary, folder, Path(of_server) / "server", load, seconds, warm_up_s)
    finally:
        if not given.folder:
            shutil.rmtree(folder)
    show(result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
