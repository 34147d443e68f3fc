"""Servers that misbehave while a run uses them: connections that break again and again, answers in halves, a role that changes, a kill.

More of the kind: tests/bus/test_redis_log.py (lost answers, a restart, a log that was rolled back or forked, a full server),
tests/bus/test_idle.py (over a minute of silence), tests/bus/test_connection.py (servers that are not fit).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from bus import codec
from bus.connection import Connection
from bus.embedded import EmbeddedServer
from bus.entry import Entry, Producer
from bus.errors import LogChanged, LogMissing, LogUnavailable
from bus.events import WaitSamples
from bus.recording import Recording
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.run_recorder import RunRecorder
from bus.trimming import Progress, Trimming
from tests.bus.factories import fact, plan, started, steps, wait_samples
from tests.bus.proxy import LossyProxy
from tests.bus.servers import free_port, running
from tests.bus.watching import blocked_client, in_thread, positions
from tests.conftest import debian_binary, wheel_binary

OPERATOR = Producer("operator", 0)
LONG_BLOCK_MS = 60_000
AT_ONCE = ("--repl-diskless-sync-delay", "0")
"""A master does not wait for further replicas before it sends what it has."""


@pytest.fixture(params=[debian_binary, wheel_binary], ids=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    find: Callable[[], Path] = request.param
    return find()


@pytest.fixture
def url(binary: Path, tmp_path: Path) -> Iterator[str]:
    """Of a server with a port, as replicas need one."""
    folder = tmp_path / "first"
    folder.mkdir()
    with running(binary, folder, "--port", "PORT", *AT_ONCE) as port:
        yield f"redis://127.0.0.1:{port}"


def become(url: str, *role: str | int) -> None:
    """REPLICAOF host port, or REPLICAOF NO ONE."""
    server = Connection(url)
    server.call("REPLICAOF", *role)
    server.close()


def wait_for_link(url: str) -> None:
    """Until the replica has what its master has."""
    server = Connection(url)
    while b"master_link_status:up" not in cast(bytes, server.call("INFO", "replication")):
        time.sleep(0.01)
    server.close()


def test_connections_that_are_killed_all_the_time_lose_nothing_and_double_nothing(own_server: EmbeddedServer, run: str) -> None:
    done = threading.Event()

    def kill_everybody() -> None:
        server = Connection(own_server.url)
        while not done.wait(0.005):
            server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        server.close()

    with RedisLog.create(own_server.url, plan(run), at=1) as writer, RedisLog.open(own_server.url, run) as reader:
        killer = threading.Thread(target=kill_everybody)
        killer.start()
        read: list[Entry] = []
        try:
            for number in range(30):
                assert writer.append(OPERATOR, steps(2 * number, 2)) == 2 + 2 * number
                read += reader.read(len(read), 1000)
        finally:
            done.set()
            killer.join()
        read += reader.read(len(read), 1000)
    assert [entry.position for entry in read] == list(range(1, 62))
    assert [entry.at for entry in read[1:]] == list(range(60))


def test_of_a_server_that_is_killed_in_the_middle_of_appends_nothing_acknowledged_is_lost_or_there_twice(
    own_server: EmbeddedServer, run: str
) -> None:
    said: list[str] = []
    own_server.keep(said.append)
    with RedisLog.create(own_server.url, plan(run), at=1) as writer, RedisLog.open(own_server.url, run) as reader:
        pid = own_server.pid
        assert pid is not None
        killer = threading.Timer(0.05, os.kill, (pid, signal.SIGKILL))
        killer.start()
        number = 0
        while own_server.pid in (pid, None) or number < 20:
            assert writer.append(OPERATOR, steps(number, 1)) == 2 + number
            number += 1
        killer.join()
        assert [entry.at for entry in reader.read(1, number + 10)] == list(range(number))
    assert "signal 9" in said[0]


@pytest.mark.parametrize("cut", [1, 3])
def test_half_an_answer_is_no_answer(own_server: EmbeddedServer, run: str, tmp_path: Path, cut: int) -> None:
    with RedisLog.create(own_server.url, plan(run), at=1) as writer, LossyProxy(own_server.url, tmp_path) as proxy:
        writer.append(OPERATOR, steps(1, 50))
        with RedisLog.open(proxy.url, run) as log:
            producer = log.attach("trainer", fact(started())).producer
            proxy.cut_answers(cut)
            assert positions(log.read(0, 100)) == list(range(1, 53))
            assert proxy.answers_lost == cut
            proxy.cut_answers(cut)
            assert log.append(producer, steps(1, 2)) == 53
            assert log.last_position() == 54


def test_a_server_that_holds_commands_back_is_waited_for(own_server: EmbeddedServer, run: str) -> None:
    operator = Connection(own_server.url)
    with RedisLog.create(own_server.url, plan(run), at=1) as log:
        operator.call("CLIENT", "PAUSE", 300, "ALL")
        assert log.append(OPERATOR, steps(1, 1)) == 2
        assert positions(log.read(0, 10)) == [1, 2]
    operator.close()


def test_a_server_that_becomes_a_replica_refuses_appends_and_says_so(url: str, run: str) -> None:
    """Its master is away, so it keeps what it has: reading goes on."""
    with RedisLog.create(url, plan(run), at=1, patience_s=0.2) as log:
        assert log.append(OPERATOR, steps(1, 1)) == 2
        become(url, "127.0.0.1", free_port())
        with pytest.raises(LogUnavailable, match=r"not ready: .*read only replica.* \(tried for 0\.2 s\)"):
            log.append(OPERATOR, steps(2, 1))
        assert positions(log.read(0, 10)) == [1, 2]
        become(url, "NO", "ONE")
        assert log.append(OPERATOR, steps(2, 1)) == 3


def test_an_append_waits_until_the_server_is_a_master_again(url: str, run: str) -> None:
    with RedisLog.create(url, plan(run), at=1) as log, RedisLog.open(url, run) as reader:
        assert positions(reader.read(0, 10)) == [1]
        thread, outcome = in_thread(lambda: reader.read(1, 10, LONG_BLOCK_MS))
        server = Connection(url)
        blocked_client(server)
        server.close()
        become(url, "127.0.0.1", free_port())
        back = threading.Timer(0.3, become, (url, "NO", "ONE"))
        back.start()
        assert log.append(OPERATOR, steps(1, 2)) == 2
        thread.join()
        back.join()
        assert positions(outcome) == [2, 3]


@pytest.fixture
def other_url(binary: Path, tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "second"
    folder.mkdir()
    with running(binary, folder, "--port", "PORT", *AT_ONCE) as port:
        yield f"redis://127.0.0.1:{port}"


def follow(url: str, master: str) -> None:
    become(url, "127.0.0.1", master.rpartition(":")[2])
    wait_for_link(url)


def test_a_server_that_follows_an_empty_one_has_lost_the_log_and_everybody_is_told(url: str, other_url: str, run: str) -> None:
    with RedisLog.create(url, plan(run), at=1, patience_s=0.2) as log, RedisLog.open(url, run) as reader:
        log.append(OPERATOR, steps(1, 3))
        assert positions(reader.read(0, 10)) == [1, 2, 3, 4]
        thread, outcome = in_thread(lambda: reader.read(4, 10, LONG_BLOCK_MS))
        follow(url, other_url)
        thread.join()
        (error,) = outcome
        assert isinstance(error, LogChanged)
        assert "the log is gone, this client knows it up to 4" in str(error)
        become(url, "NO", "ONE")
        with pytest.raises(LogMissing, match="no log of it any more"):
            log.append(OPERATOR, steps(4, 1))


def test_a_reader_of_a_server_that_follows_another_history_is_told(url: str, other_url: str, run: str) -> None:
    """Both histories have the same log id, as after a failover that lost the newest entries: the chain tells them apart."""
    with RedisLog.create(url, plan(run), at=1) as log:
        follow(other_url, url)
        become(other_url, "NO", "ONE")
        log.append(OPERATOR, steps(1, 3))
        assert positions(log.read(0, 10)) == [1, 2, 3, 4]
        with RedisLog.open(other_url, run) as elsewhere:
            elsewhere.append(OPERATOR, steps(11, 5))
        follow(url, other_url)
        with pytest.raises(LogChanged, match=r"entry 5 has chain .* does not follow on .* of entry 4 that this client read"):
            log.read(4, 10)


@contextmanager
def without_its_folder(server: Connection, folder: Path) -> Iterator[Callable[[], object]]:
    """A server whose snapshots fail, which makes it refuse every write; gives what mends that."""

    def mend() -> object:
        return server.call("CONFIG", "SET", "save", "")

    shutil.rmtree(folder)
    try:
        server.call("BGSAVE")
        while b"rdb_last_bgsave_status:ok" in cast(bytes, server.call("INFO", "persistence")):
            time.sleep(0.01)
        yield mend
    finally:
        mend()  # it would not even end otherwise


def test_a_server_that_cannot_save_is_waited_for(binary: Path, tmp_path: Path, run: str) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    with running(binary, folder, "--port", "PORT", "--save", "3600 1") as port:
        url = f"redis://127.0.0.1:{port}"
        with (
            RedisLog.create(url, plan(run), at=1, patience_s=0.2) as log,
            RedisLog.open(url, run) as patient,
            closing(Connection(url)) as server,
            without_its_folder(server, folder) as mend,
        ):
            with pytest.raises(LogUnavailable, match=r"not ready: .*(unable to|can't) persist.* \(tried for 0\.2 s\)"):
                log.append(OPERATOR, steps(1, 1))
            mended = threading.Timer(0.2, mend)
            mended.start()
            assert patient.append(OPERATOR, steps(1, 1)) == 2
            mended.join()


def test_on_a_full_server_consumers_still_say_how_far_they_are(url: str, run: str) -> None:
    """Else nothing could be trimmed there, and it would stay full."""
    with (
        RedisLog.create(url, plan(run), at=1) as log,
        closing(Trimming(url, run, log.log_id, patience_s=0.2)) as trimming,
        closing(Connection(url)) as server,
    ):
        progress = Progress(url, run, "trainer")
        log.append(OPERATOR, steps(1, 9))
        server.call("CONFIG", "SET", "maxmemory", "1")
        progress.tell(7)
        trimming.report("archiver", 9)
        assert trimming.positions() == {"trainer": 7, "archiver": 9}
        progress.close(8)
        assert trimming.positions() == {"trainer": 8, "archiver": 9}


def sockets_to(port: int) -> Iterator[socket.socket]:
    """This process's connections to a port of this machine, each as a second descriptor."""
    for path in Path("/proc/self/fd").iterdir():
        if path.is_socket():
            with socket.socket(fileno=os.dup(int(path.name))) as found, suppress(OSError):  # OSError: it is not connected
                if found.family == socket.AF_INET and found.getpeername()[1] == port:
                    yield found


def test_a_peer_that_dies_without_a_word_is_given_up_within_a_minute_also_by_who_has_just_spoken_to_it(url: str, run: str) -> None:
    """No answer to a command, not even that it arrived, is no matter of keep-alive: the kernel would try for a quarter of an hour."""
    with RedisLog.create(url, plan(run), at=1) as log:
        log.read(0, 10)
        options = [
            [found.getsockopt(socket.IPPROTO_TCP, option) for option in (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE)]
            for found in sockets_to(int(url.rpartition(":")[2]))
        ]
    assert len(options) == 2
    assert all(0 < spoken_ms < 60_000 and 0 < waited_s < 60 for spoken_ms, waited_s in options)


def test_an_archiver_of_newer_code_records_older_entries_as_they_are(
    url: str, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log holds entries of the code before it: made anew from what is read of them, their bytes would not fit the chain."""
    with (
        RedisLog.create(url, plan(run), at=1) as log,
        closing(RedisBlobs(url, run)) as blobs,
        RunRecorder.open(tmp_path / "recording", run, log.log_id, blobs) as recorder,
    ):
        log.append(OPERATOR, [fact(wait_samples(number)) for number in range(5)])
        recorder.append(log.read_rows(0, 3))
        monkeypatch.setattr(WaitSamples, "schema_version", 2)
        monkeypatch.setitem(codec.UPCASTERS, ("WaitSamples", 1), lambda body: {**body, "need": body["need"] * 10})
        log.append(OPERATOR, [fact(wait_samples(5))])
        recorder.append(log.read_rows(3, 10))
    with Recording.open(tmp_path / "recording") as recording:
        assert [row.version for row in recording.rows(2)] == [1, 1, 1, 1, 1, 2]
        waits = [entry.event for entry in recording.entries(2)]
    assert [event.need for event in waits if isinstance(event, WaitSamples)] == [80, 80, 80, 80, 80, 8]
