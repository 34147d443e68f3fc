"""What a vLLM leaves behind: no process, no shared memory, no folder; and what it says of its own failures. Needs no vLLM."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from services.engines import vllm_folder
from services.engines.vllm_folder import Folder
from services.engines.vllm_plugin import OneLine
from services.engines.vllm_processes import alive, descendants, end, remove, shared_memory

S = 10.0

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def hold(told: Connection) -> None:
    """Holds a segment of shared memory until it is killed."""
    segment = SharedMemory(create=True, size=100)
    told.send_bytes(segment.name.encode())
    time.sleep(60)


def test_descendants_are_found_and_ended_whoever_started_them() -> None:
    with subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        family = descendants([parent.pid])
        assert [process.pid for process in family] == [parent.pid, child]
        assert all(map(alive, family))
        assert end(family, S) == []
    assert not any(map(alive, family))
    assert descendants([parent.pid]) == []


def test_a_number_that_another_process_has_by_now_is_nobody_to_kill() -> None:
    own = descendants([os.getpid()])[0]
    assert alive(own)
    assert not alive(own._replace(started="1"))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory lies in files on Linux only")
def test_shared_memory_of_who_is_killed_is_removed() -> None:
    spawn = multiprocessing.get_context("spawn")
    telling, told = spawn.Pipe()
    holder = spawn.Process(target=hold, args=(told,))
    holder.start()
    path = Path("/dev/shm") / telling.recv_bytes().decode()
    assert holder.pid is not None
    family = descendants([holder.pid])
    segments = shared_memory(family)
    assert segments == {path}
    assert end(family, S) == []
    holder.join()
    remove(segments)
    assert not path.exists()
    remove(segments)


def test_only_the_user_may_enter_the_folder_and_it_goes_with_its_server() -> None:
    folder = Folder()
    assert folder.path.stat().st_mode & 0o077 == 0
    assert folder.last_error() == ""
    folder.errors.write_text("first\nWorker failed: no room\n")
    assert folder.last_error() == "Worker failed: no room"
    folder.remove()
    assert not folder.path.exists()


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files are, of a name that leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        monkeypatch.setattr("tempfile.tempdir", made)
        yield Path(made)


def test_a_folder_of_who_was_killed_is_removed_and_one_of_the_living_is_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_folder, "YOUNG_S", 0.0)
    dead, other = root / f"{vllm_folder.PREFIX}dead", root / "something-else"
    for path in (dead, other):
        path.mkdir()
        (path / vllm_folder.LOCK).touch()
    living, second = Folder(), Folder()
    assert sorted(root.iterdir()) == sorted([living.path, second.path, other])
    living.remove()
    second.remove()


def test_an_error_of_vllms_becomes_one_line_without_its_traceback() -> None:
    try:
        raise RuntimeError("no room:\n  12 of 3 bytes")
    except RuntimeError:
        record = logging.LogRecord("vllm", logging.ERROR, "", 1, "EngineCore failed to %s.", ("start",), sys.exc_info())
    assert OneLine().format(record) == "EngineCore failed to start. RuntimeError: no room: 12 of 3 bytes"
