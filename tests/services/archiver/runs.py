"""Runs whose log is written by a test and recorded by an archiver's own process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random

from bus.blobs import put_blob
from bus.entry import Draft
from bus.events import BlobRef, Event, SampleReady, ServiceStarted
from bus.log import Attached
from bus.payload_recording import PayloadRecording
from bus.recording import Recording
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.trimming import Trimming
from services.config_file import make_config
from services.exit_codes import ENDED, FENCED
from services.plan import plan_run
from tests.bus.factories import fact

PATIENCE_S = 30.0


class Run:
    """A run on a server; its archiver is started and ended by the test."""

    def __init__(self, url: str, run: str, folder: Path, **redis: object) -> None:
        settings = {"async_training": {"total_steps": 1}, "devices": "unpinned", "supervisor": {"grace_s": 4.0}, "redis": redis}
        config = make_config(settings, "test")
        self.url, self.run, self.folder = url, run, folder
        self.log = RedisLog.create(url, plan_run(config, run), 0)
        self.trainer = self.attach("trainer").producer
        self.processes: list[subprocess.Popen[bytes]] = []

    def attach(self, source: str) -> Attached:
        return self.log.attach(source, fact(ServiceStarted(code="")))

    def say(self, *events: Event) -> int:
        return self.log.append(self.trainer, [Draft(event, derived=False, cause=0, at=1) for event in events])

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "services.entry", "archiver", "--run", self.run, "--folder", str(self.folder)]
        self.processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"REDIS_URL": self.url}))
        return self.processes[-1]

    def recorded(self) -> int:
        """Position up to which the archiver said that everything is recorded."""
        return Trimming(self.url, self.run, self.log.log_id).positions().get("archiver", 0)

    def samples(self, first: int, count: int) -> int:
        """Ready samples with payloads of some KB that cannot be compressed, as their rollouter writes them."""
        with closing(RedisBlobs(self.url, self.run)) as blobs:
            return self.say(*(ready(number, put_blob(blobs, f"sample:{number}", sample(number))) for number in range(first, first + count)))

    def payloads(self) -> list[int]:
        """Samples whose payload is recorded as it was."""
        with PayloadRecording.open(self.folder) as recording:
            numbers = sorted(int(name.removeprefix("sample:")) for name in recording.names())
            return [number for number in numbers if recording.get(f"sample:{number}") == sample(number)]

    def wait_until_recorded(self, position: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.recorded() < position:
            assert self.processes[-1].poll() is None, ended(self.processes[-1])
            assert time.monotonic() < deadline, f"recorded {self.recorded()} of {position}"
            time.sleep(0.02)

    def wait_for(self, kind: type[Event]) -> None:
        """Until an event of this kind is in the log."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(isinstance(entry.event, kind) for entry in self.log.read(0, 10_000)):
            assert time.monotonic() < deadline, f"no {kind.kind} in the log"
            time.sleep(0.05)

    def events(self) -> list[Event]:
        with Recording.open(self.folder) as recording:
            return [entry.event for entry in recording.entries()]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.log.close()


def sample(number: int) -> bytes:
    return Random(number).randbytes(4_000)


def ready(number: int, blob: BlobRef) -> SampleReady:
    return SampleReady(sample=number, num_tokens=1, oldest_version=0, newest_version=0, mean_reward=0.0, blob=blob)


def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code; what a failed process said is shown."""
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (ENDED, FENCED), errors.decode()
    return process.returncode
