"""Does the archiver keep up, and what does it cost? A real server is fed entries and payloads at a steady rate while it records them.

    this process ── 5,000 entries/s, every fourth with a payload of 4 to 20 KB ──▶ server ──▶ archiver ──▶ disk
          └─ twice a second: how far behind is what is recorded, in entries and in seconds?

Samples are dropped a little later, so that the janitor has its work, too, and the server's memory is level. Run it with
`python -m benchmarks.archiver [--rate N] [--seconds S]`; with `--replicas 1000` at the rate and with the payloads of a run of so many
(benchmarks/archiver_load.py). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Protocol

from benchmarks.archiver_load import ManyReplicas
from benchmarks.scale_load import Load
from benchmarks.scale_processes import cpu_s
from benchmarks.scale_server import Server, running
from bus.blobs import blob_digest, put_blob
from bus.connection import Connection
from bus.embedded import find_binary, program_version
from bus.entry import Draft, Producer
from bus.events import (
    BlobRef,
    Event,
    GenerationRequested,
    RunEnded,
    SampleDropped,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    ServiceStopped,
)
from bus.payload_recording import PayloadRecording
from bus.recording import Recording
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.server_checks import memory_of
from bus.trimming import Trimming
from services.config_file import make_config
from services.plan import plan_run
from services.samples import Answer, SampleGroup, VersionSpan, pack_group

RUN = "bench"
BATCH_S = 0.02
KEPT_SAMPLES = 2_000
"""Dropped this many samples after they were ready."""
MOST_SAMPLES = 100
"""In one append, when the feeder has fallen behind."""
WRITERS = 3
LOOK_S = 0.5
PATIENCE_S = 60.0
STALL_US = 500
"""Commands that take the server longer in one go are counted."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.archiver", description="Does the archiver keep up?")
    parser.add_argument("--rate", type=int, default=5_000, help="entries a second")
    parser.add_argument("--replicas", type=int, help="of a run whose rate and payloads are taken; 64 requests each")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--server", type=Path, help="its program; else the one that a run would start")
    given = parser.parse_args(arguments)
    binary = given.server or find_binary()
    with tempfile.TemporaryDirectory(prefix="swingshift-archiver-") as scratch, running(binary, Path(scratch) / "server") as server:
        name, version = program_version(binary)
        said = f"a run of {given.replicas} replicas" if given.replicas else f"{given.rate} entries/s"
        print(f"{name} {'.'.join(map(str, version))}, appendonly yes; {said} for {given.seconds:g} s", flush=True)
        load = Load(replicas=given.replicas) if given.replicas else None
        print(json.dumps(measure(server, Path(scratch) / "run", load, given.rate, given.seconds)))


class Feeder(Protocol):
    """Says what an archiver records."""

    position: int
    """Of the newest entry."""
    payload_bytes: int
    """Stored so far."""
    appended: list[tuple[int, float]]
    """(position of the newest entry, when it was appended)."""

    @property
    def per_sample(self) -> int:
        """Entries."""

    def say(self, *events: Event) -> None:
        """Appends them."""

    def samples(self, count: int) -> None:
        """Says all of so many samples."""

    def recorded(self) -> Mapping[str, str]:
        """Digest of each payload that must be recorded, by its name."""


def measure(server: Server, folder: Path, load: Load | None, rate: int, seconds: float) -> dict[str, object]:
    """Feeds, looks, waits until all is recorded, and checks that it is."""
    settings = {"model": {"path": "scripted"}, "rollout": {"engine": "scripted"}, "async_training": {"total_steps": 1}}
    plan = plan_run(make_config({**settings, "devices": "unpinned"}, "the benchmark"), RUN)
    with (
        RedisLog.create(server.url, plan, time.time_ns()) as log,
        Writers(server.url) as writers,
        closing(Trimming(server.url, RUN, log.log_id)) as trimming,
        closing(Connection(server.url)) as connection,
    ):
        feeder: Feeder = FewReplicas(log, writers) if load is None else ManyReplicas(log, connection, trimming, load)
        rate = rate if load is None else round(load.samples_per_s * feeder.per_sample)
        load_average = os.getloadavg()[0]
        archiver = start_archiver(server.url, folder)
        try:
            wait_until_recorded(trimming, log.last_position())
            before, cpu = server.used(), cpu_s(archiver.pid)
            server.goes_first()
            server.watches_stalls()
            connection.call("CONFIG", "SET", "slowlog-log-slower-than", STALL_US)
            looks = feed(feeder, trimming, rate, seconds)
            archiver_s, after = cpu_s(archiver.pid) - cpu, server.used()
            stalls = server.stalls()
            began = time.monotonic()
            wait_until_recorded(trimming, feeder.position)
            drained, all_s = time.monotonic() - began, cpu_s(archiver.pid) - cpu
            memory = memory_of(connection)[0]
            feeder.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))
            archiver.wait(PATIENCE_S)
        finally:
            archiver.kill()
            archiver.wait()
        check(folder, feeder)
        sizes = {name: (folder / f"{name}.sqlite").stat().st_size for name in ("events", "payloads")}
    return {
        "entries_per_s": round(looks.entries / looks.seconds),
        "payload_mb_per_s": round(feeder.payload_bytes / looks.seconds / 1e6, 2),
        "lag_entries_p50": median(looks.behind),
        "lag_entries_max": max(looks.behind),
        "lag_s_p50": round(median(looks.late_s), 3),
        "lag_s_max": round(max(looks.late_s), 3),
        "drain_s": round(drained, 3),
        "load_before": round(load_average, 2),
        "archiver_cores": round(archiver_s / looks.seconds, 3),
        "archiver_ms_per_mb": round(all_s / feeder.payload_bytes * 1e9, 2),
        "server_cores": round((after.cpu_s - before.cpu_s) / looks.seconds, 3),
        "server_stalls": stalls,
        "server_memory_mb": round(memory / 1e6, 1),
        "events_mb": round(sizes["events"] / 1e6, 1),
        "payloads_mb": round(sizes["payloads"] / 1e6, 1),
        "payload_data_mb": round(feeder.payload_bytes / 1e6, 1),
    }


class Writers:
    """Write payloads, a few at a time: one alone would wait for the server most of its time."""

    def __init__(self, url: str) -> None:
        self._clients: queue.SimpleQueue[RedisBlobs] = queue.SimpleQueue()
        for _ in range(WRITERS):
            self._clients.put(RedisBlobs(url, RUN))
        self._pool = ThreadPoolExecutor(WRITERS)

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        while not self._clients.empty():
            self._clients.get().close()

    def write(self, items: Sequence[tuple[str, bytes]]) -> list[BlobRef]:
        """All are there when it returns."""
        return [ref for refs in self._pool.map(self._some, [items[first::WRITERS] for first in range(WRITERS)]) for ref in refs]

    def _some(self, items: Sequence[tuple[str, bytes]]) -> list[BlobRef]:
        blobs = self._clients.get()
        try:
            return [put_blob(blobs, name, data) for name, data in items]
        finally:
            self._clients.put(blobs)


class FewReplicas:
    """Appends what a rollouter would, and remembers when."""

    per_sample = 4

    def __init__(self, log: RedisLog, writers: Writers) -> None:
        self._log = log
        self._writers = writers
        self._producer: Producer = log.attach("rollouter", Draft(ServiceStarted(code=""), derived=False, cause=0, at=0)).producer
        self._payloads = payloads()
        self._sample = 0
        self.position = log.last_position()
        self.payload_bytes = 0
        self.appended: list[tuple[int, float]] = []
        """(position of the newest entry, when it was appended)."""

    def say(self, *events: Event) -> None:
        drafts = [Draft(event, derived=False, cause=0, at=time.time_ns()) for event in events]
        self.position = self._log.append(self._producer, drafts) + len(drafts) - 1
        self.appended.append((self.position, time.monotonic()))

    def samples(self, count: int) -> None:
        """Four entries and one payload each."""
        events: list[Event] = []
        numbers = range(self._sample, self._sample + count)
        refs = {ref.name: ref for ref in self._writers.write([(f"sample:{number}", self.payload(number)) for number in numbers])}
        for number in numbers:
            blob, request = refs[f"sample:{number}"], f"{number}.0"
            self.payload_bytes += blob.num_bytes
            events += (
                SampleStarted(sample=number, version=0),
                GenerationRequested(
                    request=request, attempt=1, replica="s0", epoch=1, swing=0, sample=number, answer=0, max_new_tokens=256
                ),
                SampleReady(sample=number, num_tokens=256, oldest_version=0, newest_version=0, mean_reward=0.5, blob=blob),
                SampleDropped(sample=max(0, number - KEPT_SAMPLES), reason="stale"),
            )  # fmt: skip
        self._sample += count
        self.say(*events)

    def recorded(self) -> Mapping[str, str]:
        digests = [blob_digest(data) for data in self._payloads]
        return {f"sample:{number}": digests[number % len(digests)] for number in range(self._sample)}

    def payload(self, sample: int) -> bytes:
        """What is written for it."""
        return self._payloads[sample % len(self._payloads)]


def payloads() -> list[bytes]:
    """Groups of two answers of 300 to 1,250 tokens, as the rollouter packs them."""
    random = Random(1)
    found = []
    for number in range(500):
        lengths = [random.randrange(300, 1_250) for _ in range(2)]
        answers = tuple(
            Answer(
                tuple(random.randrange(50_000) for _ in range(length)), tuple(-random.expovariate(2.0) for _ in range(length)),
                (VersionSpan(0, length),), "stop", 1.0,
            )
            for length in lengths
        )  # fmt: skip
        found.append(pack_group(SampleGroup(number, tuple(range(64)), answers)))
    return found


@dataclass
class Looks:
    """What was seen twice a second."""

    entries: int = 0
    seconds: float = 0.0
    behind: list[int] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)


def feed(feeder: Feeder, trimming: Trimming, rate: int, seconds: float) -> Looks:
    """Feeds at `rate` and looks how far the recording is."""
    looks, first, began = Looks(), feeder.position, time.monotonic()
    look_at = began + 2.0  # the archiver has begun with something by then
    while (now := time.monotonic()) < began + seconds:
        due = int((now - began) * rate) - (feeder.position - first)
        if due >= feeder.per_sample:
            feeder.samples(min(due // feeder.per_sample, MOST_SAMPLES))
        if now >= look_at:
            look_at = now + LOOK_S
            recorded = trimming.positions().get("archiver", 0)
            looks.behind.append(feeder.position - recorded)
            looks.late_s.append(late_s(feeder, recorded))
            bar(now - began, seconds, looks)
        time.sleep(max(0.0, now + BATCH_S - time.monotonic()))
    looks.entries, looks.seconds = feeder.position - first, time.monotonic() - began
    return looks


def late_s(feeder: Feeder, recorded: int) -> float:
    """Age of the oldest entry that is not recorded yet."""
    feeder.appended = [(position, at) for position, at in feeder.appended if position > recorded]
    return time.monotonic() - feeder.appended[0][1] if feeder.appended else 0.0


def bar(done: float, total: float, looks: Looks) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done:5.1f} of {total:g} s, {looks.behind[-1]:6} entries behind")
        sys.stderr.flush()


def start_archiver(url: str, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir()
    command = [sys.executable, "-P", "-m", "services.entry", "archiver", "--run", RUN, "--folder", str(folder)]
    with (folder / "archiver.log").open("wb") as log:
        return subprocess.Popen(command, env=os.environ | {"REDIS_URL": url}, stdout=log, stderr=log)


def wait_until_recorded(trimming: Trimming, position: int) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while trimming.positions().get("archiver", 0) < position:
        if time.monotonic() > give_up:
            raise SystemExit(f"the archiver is at {trimming.positions()}, it should have got to {position} by now")
        time.sleep(0.01)


def check(folder: Path, feeder: Feeder) -> None:
    """Every entry and every payload is there."""
    with Recording.open(folder) as recording, PayloadRecording.open(folder) as recorded:
        if recording.last_position() < feeder.position:
            raise SystemExit(f"{recording.last_position()} of {feeder.position} entries are recorded")
        wanted = feeder.recorded()
        for name in list(wanted)[::97]:
            if blob_digest(recorded.get(name)) != wanted[name]:
                raise SystemExit(f"payload {name} is not as it was written")
        if set(recorded.names()) != set(wanted):
            raise SystemExit(f"{len(recorded.names())} of {len(wanted)} payloads are recorded")


if __name__ == "__main__":
    main(sys.argv[1:])
