"""How fast the log is: one append to a blocked reader, many appends, and a sample's way beside that through a Ray actor queue.

    producer ─▶ [blob ▸] entry ─▶ embedded server ─▶ blocked reader (another process) [▸ blob]      ours
    producer ─▶ actor with an asyncio.Queue ─▶ consumer actor that waits in get()                   Ray, as verl passes samples

Both carry the same payload, wait for the consumer before the next one, and take turns in rounds; times are medians over all rounds.
Run it with `python -m benchmarks.bus` (needs the extra `ray`); the last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import IO

import ray

from bus.blobs import get_blob, put_blob
from bus.embedded import EmbeddedServer, find_binary, program_version
from bus.entry import Draft, Producer
from bus.events import BlobRef, GenerationFinished, RunPlanned, SampleReady, ServiceStarted, WaitSamples
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from services.samples import Answer, SampleGroup, VersionSpan, pack_group

RUN = "bench"
ROUNDS = 5
PER_ROUND = 100
PAUSE_S = 0.003
"""Between two messages, so that each finds its reader blocked."""
BATCH_EVENTS = 500
BATCHES = 40
ANSWERS = 8
ANSWER_TOKENS = 256
BLOCK_MS = 1000


def main() -> None:
    payload = sample_payload()
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as server:
        name, version = program_version(find_binary())
        print(f"{name} {'.'.join(map(str, version))}, appendonly yes, Unix socket; Ray {ray.__version__}; payload {len(payload)} bytes")
        plan = RunPlanned(
            run=RUN, seed=0, total_steps=1, required_samples=1, trigger_parameter_sync_step=1, staleness_threshold=0.0, rollout_n=ANSWERS,
            max_prompt_length=1, max_response_length=ANSWER_TOKENS,
        )  # fmt: skip
        with RedisLog.create(server.url, plan, at=0) as log:
            producer = log.attach("rollouter", Draft(ServiceStarted(code=""), derived=False, cause=0, at=0)).producer
            rates = [appended_per_s(log, producer) for _ in range(ROUNDS)]
            entries, samples, queued = latencies_ms(server.url, log, producer, payload)
    ours, ours_sample, rays = median(entries), median(samples), median(queued)
    print(f"append to blocked reader, p50        {ours:8.3f} ms")
    print(f"blob + entry to blocked reader, p50  {ours_sample:8.3f} ms")
    print(f"Ray actor queue, put to get, p50     {rays:8.3f} ms")
    print(f"appended in batches of {BATCH_EVENTS}, median of {[round(rate) for rate in rates]} events/s")
    result = {
        "append_read_p50_ms": round(ours, 4),
        "appended_per_s": round(median(rates)),
        "ray_latency_ratio": round(ours_sample / rays, 4),
        "ray_latency_ratio_entry": round(ours / rays, 4),
    }
    print(json.dumps(result))


def sample_payload() -> bytes:
    """A group as the rollouter writes it."""
    tokens = tuple(number % 1000 for number in range(ANSWER_TOKENS))
    answer = Answer(tokens, tuple(-0.001 * token for token in tokens), (VersionSpan(0, ANSWER_TOKENS),), "stop", 1.0)
    return pack_group(SampleGroup(0, tokens[:32], (answer,) * ANSWERS))


def appended_per_s(log: RedisLog, producer: Producer) -> float:
    """Entries a second, encoding them included."""
    blob = BlobRef(name="answer:123.4.1", num_bytes=16_384, digest="0123456789abcdef" * 2)
    drafts = [
        Draft(
            GenerationFinished(
                request=f"{number}.0", attempt=1, replica="a0", outcome="stop", num_tokens=100, version_spans=((3, 60), (4, 40)), blob=blob
            ),
            derived=False,
            cause=number,
            at=time.time_ns(),
        )
        for number in range(BATCH_EVENTS)
    ]
    start = time.perf_counter()
    for _ in range(BATCHES):
        log.append(producer, drafts)
    return BATCHES * BATCH_EVENTS / (time.perf_counter() - start)


def latencies_ms(url: str, log: RedisLog, producer: Producer, payload: bytes) -> tuple[list[float], list[float], list[float]]:
    """Entry alone, payload and entry, and payload through Ray, in rounds that take turns."""
    blobs = RedisBlobs(url, RUN)

    def send_entry(number: int, at: int) -> None:
        log.append(producer, [Draft(WaitSamples(step=1, need=8, have=number), derived=False, cause=0, at=at)])

    def send_sample(number: int, at: int) -> None:
        ref = put_blob(blobs, f"sample:{number}", payload)
        event = SampleReady(
            sample=number, num_tokens=ANSWERS * ANSWER_TOKENS, oldest_version=0, newest_version=0, mean_reward=1.0, blob=ref
        )
        log.append(producer, [Draft(event, derived=False, cause=0, at=at)])

    entries: list[float] = []
    samples: list[float] = []
    queued: list[float] = []
    with RayQueue(payload) as ray_queue, Reader(url, log.last_position()) as reader:
        for _ in range(ROUNDS):
            entries += reader.round(send_entry)
            samples += reader.round(send_sample)
            queued += ray_queue.round()
    blobs.close()
    return entries, samples, queued


def paced(send: Callable[[int, int], None]) -> None:
    """Sends one round; each message carries when it was sent, on the clock that all processes of a machine share."""
    for number in range(PER_ROUND):
        time.sleep(PAUSE_S)
        send(number, time.monotonic_ns())


class Reader:
    """The process that reads our log, and its latencies."""

    def __init__(self, url: str, after: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bus", "reader", url, str(after)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1],
        )  # fmt: skip

    def __enter__(self) -> Reader:
        self._line()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def round(self, send: Callable[[int, int], None]) -> list[float]:
        paced(send)
        found: list[float] = json.loads(self._line())
        return found

    def _line(self) -> str:
        stream: IO[str] | None = self._process.stdout
        assert stream is not None
        line = stream.readline()
        if not line:
            raise SystemExit("the reading process ended: see its message above")
        return line


def read(url: str, after: int) -> None:
    """The reading process: prints the latencies of each round in ms."""
    blobs = RedisBlobs(url, RUN)
    latencies: list[float] = []
    with RedisLog.open(url, RUN) as log:
        log.last_position()
        print("ready", flush=True)
        while True:
            for entry in log.read(after, PER_ROUND, BLOCK_MS):
                if isinstance(entry.event, SampleReady):
                    get_blob(blobs, entry.event.blob)
                latencies.append((time.monotonic_ns() - entry.at) / 1e6)
                after = entry.position
            if len(latencies) == PER_ROUND:
                print(json.dumps(latencies), flush=True)
                latencies = []


class SampleQueue:
    """The queue actor: what verl's message queue comes down to."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

    async def put(self, item: tuple[int, bytes]) -> None:
        await self._items.put(item)

    async def get(self) -> tuple[int, bytes]:
        return await self._items.get()


class Consumer:
    """The actor that waits for samples."""

    def consume(self, queue: ray.actor.ActorHandle, count: int) -> list[float]:
        latencies = []
        for _ in range(count):
            sent, _payload = ray.get(queue.get.remote())
            latencies.append((time.monotonic_ns() - sent) / 1e6)
        return latencies


class RayQueue:
    """The same way through Ray, in a local cluster of its own."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def __enter__(self) -> RayQueue:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20, logging_level="error")
        self._queue = ray.remote(num_cpus=0)(SampleQueue).remote()
        self._consumer = ray.remote(num_cpus=0)(Consumer).remote()
        self.round()  # the first one starts the actors
        return self

    def __exit__(self, *error: object) -> None:
        ray.shutdown()

    def round(self) -> list[float]:
        received = self._consumer.consume.remote(self._queue, PER_ROUND)
        paced(lambda number, at: ray.get(self._queue.put.remote((at, self._payload))))
        found: list[float] = ray.get(received)
        return found


def command(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["reader"]:
        read(arguments[1], int(arguments[2]))
    else:
        main()


if __name__ == "__main__":
    command(sys.argv[1:])
