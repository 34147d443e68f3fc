"""`swingshift doctor`, as a user calls it: on this machine, on a live run, on one that has ended, and on one that was killed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.connection import Connection
from bus.embedded import EmbeddedServer
from tests.conftest import debian_binary
from tests.test_cli import LONG, SCRIPTED, Running, assert_nobody_left, swingshift


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where the folders of runs are."""
    return tmp_path / "runs"


@pytest.fixture
def config(tmp_path: Path, runs: Path) -> Path:
    path = tmp_path / "quick.yaml"
    path.write_text(f"{SCRIPTED}folder: {runs}\n")
    return path


@pytest.fixture
def running(config: Path, runs: Path) -> Iterator[Running]:
    found = Running(config, runs / "r1", *LONG)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            os.kill(found.process.pid, signal.SIGKILL)
        found.process.communicate()
        assert_nobody_left(found.folder)


def test_the_machine_and_the_server_that_would_be_used() -> None:
    output = swingshift("doctor")
    for words in ("an embedded Redis", "noeviction", "append-only file", "cores", "embedded, scripted", "redis-py", "nothing is wrong"):
        assert words in output


def test_a_server_that_is_not_there_is_a_problem() -> None:
    output = swingshift("doctor", "--redis", "redis://127.0.0.1:1", status=1)
    assert "redis://127.0.0.1:1 (--redis)" in output
    assert "1 problem" in output
    assert "start a Redis (7.0 or newer) or Valkey (7.2 or newer) there, or name another" in " ".join(output.split())


def test_a_server_that_may_evict_or_forget_is_a_problem_with_what_to_do() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder), debian_binary()) as server:
        assert "nothing is wrong" in swingshift("doctor", "--redis", server.url)
        connection = Connection(server.url)
        for setting in (("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru"), ("appendonly", "no")):
            connection.call("CONFIG", "SET", *setting)
        connection.close()
        output = " ".join(swingshift("doctor", status=1, REDIS_URL=server.url).split())
    assert "2 problems" in output
    assert "may throw entries away: maxmemory is 104857600 and maxmemory-policy is allkeys-lru" in output
    assert "persistence: the server forgets the log when it restarts: set `appendonly yes`" in output


def test_a_live_run_says_who_waits_for_what_then_that_it_was_cut_off(running: Running, runs: Path) -> None:
    running.wait_for("StepDone", 3)
    output = swingshift("doctor", "r1", "--runs", str(runs))
    assert "r1: running" in output
    assert "nothing is wrong" in output
    services = [words for line in output.splitlines() if (words := line.split())[2:3] == ["started"]]
    assert {service[0] for service in services} == {
        "archiver", "controller", "monitor", "policy", "replica:h0", "replica:s0", "rollouter", "trainer"
    }  # fmt: skip
    assert {service[-1] for service in services} == {"yes"}, output
    assert "waits for (or is busy with)" in output
    assert "Stalled says who waits for what" in output
    os.kill(running.process.pid, signal.SIGKILL)
    assert_nobody_left(running.folder)
    output = swingshift("doctor", "r1", "--runs", str(runs), status=1)
    assert "the run was cut off" in output


def test_a_run_that_ended_in_order_is_healthy_and_every_line_fits(config: Path, runs: Path) -> None:
    swingshift("run", str(config), "--run", "r1", "--no-verify", "--in-process")
    for columns in (80, 120):
        output = swingshift("doctor", "r1", "--runs", str(runs), COLUMNS=str(columns))
        assert "r1: has ended (completed)" in output
        assert "nothing is wrong" in output
        assert all(len(line) <= columns for line in output.splitlines())
    assert (runs / "r1" / "tensorboard").is_dir()


def test_a_run_that_is_not_there_is_a_mistake(runs: Path) -> None:
    assert "there is no run 'nowhere'" in swingshift("doctor", "nowhere", "--runs", str(runs), status=2)
