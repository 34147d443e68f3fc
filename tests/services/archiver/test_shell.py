"""The archiver as a process on a real server: its first and last word, SIGTERM, SIGKILL, and how heavy it is."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from bus.events import RolloutPaused, RunEnded, ServiceStopped, WaitSamples
from bus.payload_recording import FILE_NAME as PAYLOADS
from bus.recording import FILE_NAME, Recording
from services.exit_codes import ENDED, FENCED
from tests.disks import SmallDisk
from tests.services.archiver.runs import PATIENCE_S, Run, ended


@pytest.fixture
def archived(server_url: str, run: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(server_url, run, tmp_path / "run")
    yield made
    made.close()


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
    assert sorted(path.name for path in archived.folder.iterdir()) == ["code", FILE_NAME, PAYLOADS]


def test_an_archiver_that_is_told_to_end_records_its_last_word(archived: Run) -> None:
    process = archived.start()
    archived.wait_until_recorded(3)
    archived.say(WaitSamples(step=1, need=2, have=0))
    process.send_signal(signal.SIGTERM)
    assert ended(process) == ENDED
    assert archived.events()[-2:] == [WaitSamples(step=1, need=2, have=0), ServiceStopped(reason="terminated")]


def test_an_archiver_that_is_killed_again_and_again_leaves_no_entry_and_no_payload_out(redis_url: str, run: str, tmp_path: Path) -> None:
    """The kills come when it is starting, when it is recording, and when it has nothing to do."""
    random = Random(7)
    with closing(Run(redis_url, run, tmp_path / "run")) as archived:
        for first in range(0, 200, 50):
            killed = archived.start()
            last = archived.samples(first, 25)
            if first:
                archived.wait_until_recorded(last)
            archived.samples(first + 25, 25)
            time.sleep(random.uniform(0.0, 0.3))
            killed.kill()
            killed.wait()
        final = archived.start()
        archived.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))
        assert ended(final) == ENDED
        assert archived.events() == [entry.event for entry in archived.log.read(0, 10_000)]
        assert archived.payloads() == list(range(200))


def test_an_archiver_ends_when_another_one_takes_over(archived: Run) -> None:
    first = archived.start()
    archived.wait_until_recorded(3)
    second = archived.start()
    assert ended(first) == FENCED
    archived.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))
    assert ended(second) == ENDED
    assert archived.events() == [entry.event for entry in archived.log.read(0, 10_000)]


def check_a_full_disk(archived: Run, process: subprocess.Popen[bytes], make_room: Callable[[], None]) -> None:
    """The archiver's disk takes about 400 KB. It stays, the run is paused when it has used its memory, and with room nothing is missing."""
    first = archived.samples(0, 10) + 9
    archived.wait_until_recorded(first)
    last = archived.samples(10, 190) + 189
    archived.wait_for(RolloutPaused)
    assert process.poll() is None
    assert archived.recorded() < last
    make_room()
    archived.wait_until_recorded(last)
    archived.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ENDED
    said = errors.decode()
    assert "the disk takes nothing, trying on: waited_s=0" in said
    assert f"cannot be written to {archived.folder / PAYLOADS}" in said
    assert "the disk takes entries again" in said
    assert archived.events() == [entry.event for entry in archived.log.read(0, 10_000)]
    assert archived.payloads() == list(range(200))


def test_an_archiver_whose_files_cannot_grow_goes_on_when_they_can_again(redis_url: str, run: str, tmp_path: Path) -> None:
    with closing(Run(redis_url, run, tmp_path / "run", memory_budget=600_000)) as archived:
        process = archived.start()
        archived.wait_until_recorded(3)

        def limit(size: int) -> None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        limit(400_000)
        check_a_full_disk(archived, process, lambda: limit(resource.RLIM_INFINITY))


def test_an_archiver_that_starts_on_a_full_disk_waits_for_room(redis_url: str, run: str, tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", "600k")
    try:
        with closing(Run(redis_url, run, disk.path / "run", memory_budget=600_000)) as archived:
            with suppress(OSError), (disk.path / "stuffing").open("wb", buffering=0) as file:
                while file.write(b"x" * 4096):
                    pass
            process = archived.start()
            archived.samples(0, 200)
            archived.wait_for(RolloutPaused)
            assert process.poll() is None
            disk.enlarge("16m")
            archived.say(RunEnded(reason="completed"), ServiceStopped(reason="done"))
            assert ended(process) == ENDED
            assert archived.events() == [entry.event for entry in archived.log.read(0, 10_000)]
            assert archived.payloads() == list(range(200))
    finally:
        disk.close()


def test_an_archiver_takes_no_torch_along() -> None:
    code = "import sys, services.archiver.shell; print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=dict(os.environ))
    assert done.stdout == "[]\n"
