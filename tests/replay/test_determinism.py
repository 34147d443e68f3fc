"""Each core is a function of the log: the same bytes in every process, and nothing but the log is looked at.

Two guards, each shown to be able to fail. Processes that differ in all that should not matter (seed of the hashes, time zone, folder,
language) follow one recording, and what their cores say is compared position by position. And the cores run under a seal that raises at
any call of a clock, a random number, the environment, a file or a socket.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from random import random as drawn
from time import localtime, monotonic

import pytest

from bus.core import Deadline, Request
from bus.entry import Entry
from bus.events import Event, SampleDropped, ServiceStarted
from bus.recording import Recording
from bus.seal import SealBroken, sealed
from tests.golden.files import RECORDINGS, unpack
from tests.replay.traces import CORES, OrderOfASet, digests

ROOT = Path(__file__).parents[2]
PLACES = (("0", "UTC", "C"), ("1", "Asia/Kathmandu", "C.UTF-8"), ("4242", "America/St_Johns", "tr_TR.UTF-8"))
"""Seed of the hashes, time zone, language."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(RECORDINGS / "as_today" / "lending", tmp_path_factory.mktemp("determinism") / "run")


@pytest.fixture(scope="module")
def entries(folder: Path) -> list[Entry]:
    with Recording.open(folder) as recording:
        return list(recording.entries())


@pytest.fixture(scope="module")
def told(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """What the cores say in each of the places."""
    processes = [begin(folder, tmp_path_factory.mktemp(f"place{seed}"), seed, zone, language) for seed, zone, language in PLACES]
    return [finish(process) for process in processes]


def begin(folder: Path, there: Path, seed: str, zone: str, language: str) -> subprocess.Popen[str]:
    environment = {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": language, "HOME": str(there), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.replay.traces", str(folder)]
    return subprocess.Popen(command, cwd=there, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, list[str]]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    found: dict[str, list[str]] = json.loads(output)
    return found


def first_difference(one: Sequence[str], other: Sequence[str]) -> int | None:
    """The position where two tellings differ first."""
    return next((position for position, (left, right) in enumerate(zip(one, other, strict=True), 1) if left != right), None)


def test_the_recording_has_what_a_core_can_meet(entries: list[Entry]) -> None:
    kinds = {entry.event.kind for entry in entries}
    assert kinds >= {"SwitchDone", "SwitchRejected", "ReplicaLost", "ServiceLost", "EvalDone", "CheckpointSaved", "DeadlineMissed"}
    assert {entry.event.reason for entry in entries if isinstance(entry.event, SampleDropped)} >= {"failed", "filtered"}
    assert {entry.source for entry in entries if isinstance(entry.event, ServiceStarted) and entry.epoch > 1} >= {"trainer", "controller"}


@pytest.mark.parametrize("name", CORES)
def test_a_core_says_the_same_bytes_under_every_hash_seed_time_zone_and_folder(told: list[dict[str, list[str]]], name: str) -> None:
    first, *others = told
    assert len(set(first[name])) > 3, "it says next to nothing: there is nothing to compare"
    for place, other in zip(PLACES[1:], others, strict=True):
        assert first_difference(first[name], other[name]) is None, place


def test_a_core_that_goes_through_a_set_is_found(told: list[dict[str, list[str]]]) -> None:
    first, *others = told
    assert any(first_difference(first[OrderOfASet.source], other[OrderOfASet.source]) for other in others)


@pytest.mark.parametrize("name", CORES)
def test_a_core_looks_at_nothing_but_the_log(name: str, entries: list[Entry]) -> None:
    assert len(digests(CORES[name](), entries)) == len(entries)


def test_the_same_log_read_twice_by_one_core_after_the_other_gives_the_same(entries: list[Entry]) -> None:
    """Cores share no state beside the log."""
    for make in CORES.values():
        one, other = make(), make()
        assert digests(one, entries) == digests(other, entries)


class Curious:
    """A core that must not be: it looks at something else before it decides."""

    source = "curious"

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look

    def apply(self, entry: Entry) -> None: ...

    def decide(self) -> Event | None:
        return SampleDropped(sample=1, reason="stale", detail=str(self._look()))

    def outstanding(self) -> Sequence[Request]:
        return ()

    def deadlines(self) -> Sequence[Deadline]:
        return ()


@pytest.mark.parametrize(
    ("look", "named"),
    [
        (monotonic, "time.monotonic"),
        (localtime, "time.localtime"),
        (datetime.now, "datetime.datetime.now"),
        (drawn, "random.Random.random"),
        (lambda: random.Random(1).random(), "random.Random.__init__"),
        (lambda: random.choice("ab"), "random.Random.choice"),
        (uuid.uuid4, "uuid.uuid4"),
        (lambda: os.environ["PATH"], "os._Environ.__getitem__"),
        (lambda: os.getenv("PATH"), "os.getenv"),
        (os.getcwd, "posix.getcwd"),
        (os.getpid, "posix.getpid"),
        (lambda: os.urandom(4), "posix.urandom"),
        (lambda: open(__file__), "io.open"),  # noqa: SIM115  (it is never opened)
        (lambda: Path(__file__).exists(), "pathlib"),
        (socket.gethostname, "_socket.gethostname"),
        (socket.socket, "socket.socket.__init__"),
        (lambda: subprocess.run(["true"], check=True), "subprocess.run"),
    ],
)
def test_a_core_that_looks_elsewhere_is_found_whatever_it_calls_it(look: Callable[[], object], named: str, entries: list[Entry]) -> None:
    with pytest.raises(SealBroken, match=rf"{named}.* was called by .*Curious\.decide|{named}.* was called by .*<lambda>"):
        digests(Curious(look), entries[:3])


def test_after_the_seal_everything_may_be_called_again() -> None:
    with pytest.raises(SealBroken), sealed():
        monotonic()
    with sealed():
        pass
    assert monotonic() > 0
    assert os.getpid() > 0
