"""The archiver as a process on a real server: its first and last word, SIGTERM, SIGKILL, and how heavy it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.entry import Draft
from bus.events import Event, RunEnded, ServiceStarted, ServiceStopped, WaitSamples
from bus.log import Attached
from bus.recording import FILE_NAME, Recording
from bus.redis_log import RedisLog
from bus.trimming import Trimming
from services.config_file import make_config
from services.entry import ENDED, FENCED
from services.plan import plan_run
from tests.bus.factories import fact

PATIENCE_S = 30.0


class Run:
    """A run on a server; its archiver is started and ended by the test."""

    def __init__(self, url: str, run: str, folder: Path) -> None:
        config = make_config({"async_training": {"total_steps": 1}, "devices": "unpinned", "supervisor": {"grace_s": 4.0}}, "test")
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

    def wait_until_recorded(self, position: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.recorded() < position:
            assert self.processes[-1].poll() is None, ended(self.processes[-1])
            assert time.monotonic() < deadline, f"recorded {self.recorded()} of {position}"
            time.sleep(0.02)

    def events(self) -> list[Event]:
        with Recording.open(self.folder) as recording:
            return [entry.event for entry in recording.entries()]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.log.close()


@pytest.fixture
def archived(server_url: str, run: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(server_url, run, tmp_path / "run")
    yield made
    made.close()


def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code; what a failed process said is shown."""
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (ENDED, FENCED), errors.decode()
    return process.returncode


def test_a_run_is_recorded_from_its_plan_to_the_archivers_own_last_word(archived: Run) -> None:
    process = archived.start()
    archived.say(*(WaitSamples(step=step, need=2, have=0) for step in range(2000)))
    archived.wait_until_recorded(2003)
    archived.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))
    assert ended(process) == ENDED
    events = archived.events()
    assert events[-1] == ServiceStopped(reason="the run has ended")
    whole = archived.log.read(0, 10_000)
    assert events == [entry.event for entry in whole]
    assert archived.recorded() == len(whole)
    with Recording.open(archived.folder) as recording:
        assert recording.meta() == (archived.run, archived.log.log_id, len(whole), whole[-1].chain)
    assert [path.name for path in archived.folder.iterdir()] == [FILE_NAME]


def test_an_archiver_that_is_told_to_end_records_its_last_word(archived: Run) -> None:
    process = archived.start()
    archived.wait_until_recorded(3)
    archived.say(WaitSamples(step=1, need=2, have=0))
    process.send_signal(signal.SIGTERM)
    assert ended(process) == ENDED
    assert archived.events()[-2:] == [WaitSamples(step=1, need=2, have=0), ServiceStopped(reason="terminated")]


def test_a_killed_archiver_is_succeeded_without_a_gap(archived: Run) -> None:
    first = archived.start()
    for step in range(5):
        archived.say(*(WaitSamples(step=step, need=2, have=have) for have in range(200)))
        time.sleep(0.1)
    archived.wait_until_recorded(100)
    first.kill()
    archived.say(WaitSamples(step=9, need=2, have=0))
    second = archived.start()
    archived.wait_until_recorded(1005)
    archived.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))
    assert ended(second) == ENDED
    assert archived.events() == [entry.event for entry in archived.log.read(0, 10_000)]


def test_an_archiver_ends_when_another_one_takes_over(archived: Run) -> None:
    first = archived.start()
    archived.wait_until_recorded(3)
    second = archived.start()
    assert ended(first) == FENCED
    archived.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))
    assert ended(second) == ENDED
    assert archived.events() == [entry.event for entry in archived.log.read(0, 10_000)]


def test_an_archiver_takes_no_torch_along() -> None:
    code = "import sys, services.archiver.shell; print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=dict(os.environ))
    assert done.stdout == "[]\n"
