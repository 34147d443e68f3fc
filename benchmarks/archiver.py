"""Does the archiver keep up? A real server is fed entries and payloads at a steady rate while the archiver's process records them.

    this process ── 5,000 entries/s, every fourth with a payload of 4 to 20 KB ──▶ server ──▶ archiver ──▶ disk
          └─ twice a second: how far behind is what is recorded, in entries and in seconds?

Samples are dropped a little later, so that the janitor has its work, too, and the server's memory is level. Run it with
`python -m benchmarks.archiver [--rate N] [--seconds S]`; the last line is one JSON object.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from bus.blobs import put_blob
from bus.connection import Connection, memory_of
from bus.embedded import EmbeddedServer, find_binary, program_version
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


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.archiver", description="Does the archiver keep up?")
    parser.add_argument("--rate", type=int, default=5_000, help="entries a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="swingshift-archiver-") as scratch, EmbeddedServer(Path(scratch) / "server") as server:
        name, version = program_version(find_binary())
        print(f"{name} {'.'.join(map(str, version))}, appendonly yes; {given.rate} entries/s for {given.seconds:g} s", flush=True)
        print(json.dumps(measure(server.url, Path(scratch) / "run", given.rate, given.seconds)))


def measure(url: str, folder: Path, rate: int, seconds: float) -> dict[str, float]:
    """Feeds, looks, waits until all is recorded, and checks that it is."""
    settings = {"model": {"path": "scripted"}, "rollout": {"engine": "scripted"}, "async_training": {"total_steps": 1}}
    plan = plan_run(make_config({**settings, "devices": "unpinned"}, "the benchmark"), RUN)
    with (
        RedisLog.create(url, plan, time.time_ns()) as log,
        Writers(url) as writers,
        closing(Trimming(url, RUN, log.log_id)) as trimming,
        closing(Connection(url)) as connection,
    ):
        feeder, load = Feeder(log, writers), os.getloadavg()[0]
        archiver = start_archiver(url, folder)
        try:
            wait_until_recorded(trimming, log.last_position())
            server = int(server_facts(connection)["process_id"])
            cpu = [cpu_s(pid) for pid in (archiver.pid, server)]
            looks = feed(feeder, trimming, rate, seconds)
            used = [now - before for now, before in zip((cpu_s(archiver.pid), cpu_s(server)), cpu, strict=True)]
            began = time.monotonic()
            wait_until_recorded(trimming, feeder.position)
            drained = time.monotonic() - began
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
        "load_before": round(load, 2),
        "archiver_cores": round(used[0] / looks.seconds, 3),
        "server_cores": round(used[1] / looks.seconds, 3),
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


class Feeder:
    """Appends what a rollouter would, and remembers when."""

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

    @property
    def samples_said(self) -> int:
        return self._sample

    def payload(self, sample: int) -> bytes:
        """What was written for it."""
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
        if due >= 4:
            feeder.samples(min(due // 4, MOST_SAMPLES))
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
        for sample in range(0, feeder.samples_said, 97):
            if recorded.get(f"sample:{sample}") != feeder.payload(sample):
                raise SystemExit(f"the payload of sample {sample} is not as it was written")
        if len(recorded.names()) != feeder.samples_said:
            raise SystemExit(f"{len(recorded.names())} of {feeder.samples_said} payloads are recorded")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used. Reads /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server_facts(connection: Connection) -> dict[str, str]:
    reply = connection.call("INFO", "server")
    text = reply.decode() if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


if __name__ == "__main__":
    main(sys.argv[1:])
