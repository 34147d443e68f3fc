"""Memory of a long run: level, on the server and in every process that reads the log.

    python -m benchmarks.level [--samples 200000]

    this process: entries and payloads as the services of a run write them ─▶ embedded server ─▶ the archiver, as in every run
                                                                               └▶ a process a core: reads, folds, tells how far it is

Nothing computes: what is measured is what the log and its payloads leave behind. The writer waits for who is far behind, as a run's
staleness limit makes it wait. The last line is one JSON object; memory in MiB, the largest of each quarter of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from benchmarks.runs import scratch
from bus.blobs import put_blob
from bus.connection import Connection
from bus.core import Core
from bus.embedded import EmbeddedServer
from bus.entry import Draft, Producer
from bus.events import (
    BatchFormed,
    BlobRef,
    BoundaryOpened,
    CheckpointSaved,
    Event,
    GenerationFinished,
    GenerationRequested,
    PolicyAttached,
    ReplicaAdded,
    RunEnded,
    SampleDropped,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    ServiceStopped,
    StepDone,
    SwitchRequested,
    TrainGranted,
    WaitSamples,
    WeightsApplied,
    WeightsPublished,
)
from bus.history import History
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.server_checks import memory_of
from bus.trimming import Progress, Trimming
from policies.registry import create
from services.config_file import make_config
from services.controller.core import ControllerCore
from services.payloads import answer_blob, prompt_blob, sample_blob
from services.plan import plan_run
from services.policy.core import PolicyCore
from services.rollouter.core import RollouterCore
from services.samples import Answer, PartialAnswer, SampleGroup, VersionSpan, pack_answer, pack_group, pack_tokens
from services.trainer.core import TrainerCore

RUN = "level"
STEP = 64
"""Samples of a step."""
CYCLE = 4
"""Steps of a cycle; each ends with a version and a checkpoint."""
TOKENS = 64
FILTERED = 0.03
MOST_BEHIND = 20_000
"""Entries that a reader may be behind before the writer waits."""
QUARTERS = 4
MIB = 1 << 20
CORES = ("trainer", "rollouter", "controller", "policy")
SETTINGS = {
    "model": {"path": "scripted"}, "rollout": {"engine": "scripted", "n": 1}, "devices": "unpinned",
    "async_training": {"total_steps": 10**6, "ppo_mini_batch_size": STEP, "trigger_parameter_sync_step": CYCLE},
}  # fmt: skip


class Writer:
    """Writes a run of one replica, without swings, a step at a time."""

    def __init__(self, log: RedisLog, blobs: RedisBlobs) -> None:
        self._log = log
        self._blobs = blobs
        self._random = Random(1)
        self._producers: dict[str, Producer] = {}
        self.sample = self.step = self.version = 0
        for source in ("trainer", "rollouter", "controller", "replica:s0"):
            self._attach(source, ServiceStarted(code="", role="standalone" if source == "replica:s0" else ""))
        self._attach("policy", PolicyAttached(name="default", params={}, mode="active", code=""))
        self._say("replica:s0", [ReplicaAdded(replica="s0", role="standalone", slots=2 * STEP, seconds=0.0)])
        self._publish()
        self._say("controller", [BoundaryOpened(version=0), TrainGranted(version=0, reason="static")])

    def _attach(self, source: str, first_word: ServiceStarted | PolicyAttached) -> None:
        self._producers[source] = self._log.attach(source, Draft(first_word, derived=False, cause=0, at=time.time_ns())).producer

    def _say(self, source: str, events: Sequence[Event], cause: int = 1) -> int:
        """Appends facts and decisions; returns the last one's position."""
        derived = (SampleStarted, GenerationRequested, BatchFormed, WaitSamples, SwitchRequested, TrainGranted, BoundaryOpened)
        drafts = [Draft(event, derived=isinstance(event, derived), cause=cause, at=time.time_ns()) for event in events]
        return self._log.append(self._producers[source], drafts) + len(drafts) - 1

    def write_step(self) -> int:
        """One step from its prompts to its end; returns the newest position."""
        self.step += 1
        ready: list[int] = []
        position = self._log.last_position()
        while len(ready) < STEP:
            samples = range(self.sample, self.sample + STEP - len(ready))
            self.sample += len(samples)
            position = self._say("rollouter", list(self._started(samples)), position)
            position = self._say("replica:s0", [self._answered(sample) for sample in samples], position)
            scored = [self._scored(sample) for sample in samples]
            ready += [event.sample for event in scored if isinstance(event, SampleReady)]
            position = self._say("rollouter", scored, position)
        batch = BatchFormed(step=self.step, samples=tuple(ready), micro_batches=(tuple(range(STEP)),))
        position = self._say("trainer", [WaitSamples(step=self.step, need=STEP, have=0), batch], position)
        return self._finish_step(position)

    def _started(self, samples: range) -> Iterator[Event]:
        for sample in samples:
            yield SampleStarted(sample=sample, version=self.version)
            self._blobs.put(prompt_blob(sample), pack_tokens(tuple(self._random.randrange(50_000) for _ in range(TOKENS))))
            yield GenerationRequested(
                request=f"{sample}.0", attempt=1, replica="s0", epoch=1, swing=0, sample=sample, answer=0, max_new_tokens=TOKENS
            )

    def _answered(self, sample: int) -> GenerationFinished:
        tokens = tuple(self._random.randrange(50_000) for _ in range(TOKENS))
        answer = PartialAnswer(tokens, tuple(self._random.random() for _ in tokens), (VersionSpan(self.version, TOKENS),))
        return GenerationFinished(
            request=f"{sample}.0", attempt=1, replica="s0", outcome="stop", num_tokens=TOKENS, version_spans=((self.version, TOKENS),),
            blob=put_blob(self._blobs, answer_blob(f"{sample}.0", 1), pack_answer(answer)),
        )  # fmt: skip

    def _scored(self, sample: int) -> Event:
        if self._random.random() < FILTERED:
            return SampleDropped(sample=sample, reason="filtered")
        tokens = tuple(range(TOKENS))
        answer = Answer(tokens, tuple(self._random.random() for _ in tokens), (VersionSpan(self.version, TOKENS),), "stop", 1.0)
        ref: BlobRef = put_blob(self._blobs, sample_blob(sample), pack_group(SampleGroup(sample, tokens, (answer,))))
        return SampleReady(
            sample=sample, num_tokens=TOKENS, oldest_version=self.version, newest_version=self.version, mean_reward=1.0, blob=ref
        )

    def _finish_step(self, position: int) -> int:
        is_boundary = self.step % CYCLE == 0
        done = StepDone(
            step=self.step, version=self.version, is_boundary=is_boundary, num_samples=STEP, seconds={"train": 1.0}, metrics={"loss": 0.5}
        )
        position = self._say("trainer", [done], position)
        if is_boundary:
            self._say(
                "policy",
                [
                    SwitchRequested(
                        target="train", answers=self.version + 1, amends=None, give_back_at=0, max_lent_s=0.0, reason="x", evidence={}
                    )
                ],
            )
            self.version += 1
            self._publish()
            saved = CheckpointSaved(
                step=self.step, version=self.version, position=position, uri=f"file:///checkpoint-{self.step}", digest="", seconds=0.0
            )
            self._say("trainer", [saved], position)
            position = self._say("controller", [TrainGranted(version=self.version, reason="verdict")], position)
        return position

    def _publish(self) -> None:
        self._say("trainer", [
            WeightsPublished(
                version=self.version, revision=0, transport="file", uri=f"file:///v{self.version}", digest="d", num_bytes=1, seconds=0.0
            )
        ])  # fmt: skip
        self._say("replica:s0", [WeightsApplied(replica="s0", version=self.version, revision=0, seconds=0.0)])

    def end(self) -> None:
        """The end of the run, and everybody's last word."""
        self._say("controller", [RunEnded(reason="completed")])
        for source in self._producers:
            self._say(source, [ServiceStopped(reason="the run has ended")])


def consume(service: str, url: str, run: str, folder: Path) -> None:
    """Reads the log to its end, folds it with the service's core, and tells how far it has durably got."""
    cores: dict[str, type[TrainerCore | RollouterCore | ControllerCore]] = {
        "trainer": TrainerCore, "rollouter": RollouterCore, "controller": ControllerCore,
    }  # fmt: skip
    core: Core = cores[service]() if service in cores else PolicyCore(create("default", {}))
    position, ended, progress = 0, False, Progress(url, run, service)
    with History.open(url, run, folder) as history:
        while not ended:
            entries = history.read(position, 512, 1000)
            for entry in entries:
                core.apply(entry)
                position = entry.position
                ended = ended or isinstance(entry.event, RunEnded)
            progress.tell(durable(core, position))
    progress.close(durable(core, position))


def durable(core: Core, position: int) -> int:
    """As the services tell it."""
    if not isinstance(core, TrainerCore):
        return position
    return min(position, core.kept.saved[-1].position) if core.kept.saved else 0


def rss(pid: int) -> float:
    """MiB of a process that are in memory; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


class Gauge:
    """The largest value of each thing in each quarter of the run."""

    def __init__(self) -> None:
        self.largest: dict[str, list[float]] = {}

    def note(self, share: float, values: dict[str, float]) -> None:
        quarter = min(QUARTERS - 1, int(share * QUARTERS))
        for name, value in values.items():
            found = self.largest.setdefault(name, [0.0] * QUARTERS)
            found[quarter] = max(found[quarter], value)


def measure(samples: int, folder: Path) -> dict[str, object]:
    """Runs it; returns the result."""
    gauge, began = Gauge(), time.monotonic()
    with EmbeddedServer(folder / "server") as server:
        plan = plan_run(make_config(SETTINGS, "benchmark"), RUN)
        place, environment = folder / RUN, os.environ | {"REDIS_URL": server.url}
        with RedisLog.create(server.url, plan, time.time_ns()) as log:
            blobs, trimming, connection = RedisBlobs(server.url, RUN), Trimming(server.url, RUN, log.log_id), Connection(server.url)
            commands = {
                "archiver": ["-m", "services.entry", "archiver", "--run", RUN, "--folder", str(place)],
                **{core: ["-m", "benchmarks.level", "--core", core, "--url", server.url, "--folder", str(place)] for core in CORES},
            }
            processes = {name: subprocess.Popen([sys.executable, *command], env=environment) for name, command in commands.items()}
            writer = Writer(log, blobs)
            while writer.sample < samples:
                position = writer.write_step()
                if writer.step % 5 == 0:
                    share = writer.sample / samples
                    values = {name: rss(process.pid) for name, process in processes.items()}
                    gauge.note(share, {"server": memory_of(connection)[0] / MIB, **values})
                    say(f"{writer.sample} of {samples} samples, {position} entries, {time.monotonic() - began:.0f} s")
                    wait_for_the_slowest(trimming, position)
            writer.end()
            for process in processes.values():
                process.wait(timeout=120.0)
            entries = log.last_position()
            for client in (blobs, trimming, connection):
                client.close()
    seconds = time.monotonic() - began
    return {
        "samples": writer.sample, "entries": entries, "seconds": round(seconds, 1), "entries_per_s": round(entries / seconds),
        "largest_mib": {name: [round(value, 1) for value in values] for name, values in gauge.largest.items()},
        "recorded_mib": {path.name: round(path.stat().st_size / MIB, 1) for path in sorted(place.glob("*.sqlite"))},
    }  # fmt: skip


def wait_for_the_slowest(trimming: Trimming, position: int) -> None:
    """As long as somebody is far behind. The trainer tells its newest checkpoint, which is behind by nature."""
    while min(trimming.positions().get(name, 0) for name in ("archiver", *CORES)) < position - MOST_BEHIND:
        time.sleep(0.02)


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    """Prints a table, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--core", choices=CORES, help="be the reader for this core")
    parser.add_argument("--url")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.core:
        consume(given.core, given.url, RUN, given.folder)
        return
    result = measure(given.samples, given.folder or scratch("level"))
    largest = result["largest_mib"]
    assert isinstance(largest, dict)
    for name, values in largest.items():
        print(f"{name:<12}" + "".join(f"{value:>10.1f}" for value in values) + "  MiB")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
