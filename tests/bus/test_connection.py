"""What is asked of a server before it is used, and what is said about one that cannot be."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest

from bus.connection import Connection, check_server, connect, without_password
from bus.entry import Producer
from bus.errors import ConfigError, LogUnavailable, ServerError
from bus.redis_log import RedisLog
from tests.bus.factories import plan, steps
from tests.conftest import debian_binary, wheel_binary

TLS = Path(__file__).with_name("tls")
"""A self-signed certificate for localhost and its key, made for these tests and used nowhere else."""
OPERATOR = Producer("operator", 0)
BOUND_S = 60.0
"""A wait for another process that fails the test when it takes this long; never reached by a healthy one."""


@pytest.fixture(params=[debian_binary, wheel_binary], ids=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    find: Callable[[], Path] = request.param
    return find()


@contextmanager
def running(binary: Path, folder: Path, *options: str) -> Iterator[int]:
    """A server on a free TCP port of the loopback interface, as a user may have one; gives the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [
        str(binary),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--save",
        "",
        *(option.replace("PORT", str(port)) for option in options),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + BOUND_S
        while not accepts(port):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@127.0.0.1:1/0",
        "redis://127.0.0.1:1",
        "unix:///nowhere/redis.sock",
        "redis://user:secret@127.0.0.1:1?password=secret",
    ],
)
def test_a_server_that_is_not_there_is_said_at_once_and_without_the_password(url: str) -> None:
    with pytest.raises(ServerError, match=r"start a Redis .* or name another with --redis URL") as caught:
        RedisLog.open(url, "r")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1", "localhost:6379", "redis://127.0.0.1?db=x", "redis://127.0.0.1?no_such_option=1"])
def test_an_address_that_is_none_is_a_mistake_of_the_user(url: str) -> None:
    with pytest.raises(ConfigError):
        connect(url)


def test_messages_show_the_address_without_the_password() -> None:
    assert without_password("redis://user:secret@host:6379/2?password=secret") == "redis://user:***@host:6379/2"
    assert without_password("redis://:secret@host") == "redis://:***@host"
    assert without_password("unix:///run/redis.sock?password=secret") == "unix:///run/redis.sock"


def test_c_49_a_password_works_and_a_wrong_one_is_said(binary: Path, tmp_path: Path) -> None:
    with running(binary, tmp_path, "--port", "PORT", "--requirepass", "good") as port:
        RedisLog.create(f"redis://:good@127.0.0.1:{port}", plan("r"), at=1).close()
        for url in (f"redis://:bad@127.0.0.1:{port}", f"redis://127.0.0.1:{port}", f"redis://nobody:good@127.0.0.1:{port}"):
            with pytest.raises(ServerError, match="refuses the user or password") as caught:
                RedisLog.open(url, "r")
            assert "bad" not in str(caught.value)


def test_a_user_without_the_rights_it_needs_is_told(binary: Path, tmp_path: Path) -> None:
    with running(binary, tmp_path, "--port", "PORT") as port:
        RedisLog.create(f"redis://127.0.0.1:{port}", plan("r"), at=1).close()
        owner = Connection(f"redis://127.0.0.1:{port}")
        owner.call("ACL", "SETUSER", "guest", "on", ">word", "~*", "+hget", "+info", "+hmget", "+xread")
        owner.close()
        with RedisLog.open(f"redis://guest:word@127.0.0.1:{port}", "r") as log:
            assert len(log.read(0, 10)) == 1
            with pytest.raises(ServerError, match=r"refuses a command: .*permissions"):
                log.append(OPERATOR, steps(1, 1))


def test_c_49_tls_works_and_a_server_that_cannot_prove_who_it_is_is_refused(tmp_path: Path) -> None:
    certificate, key = str(TLS / "localhost.pem"), str(TLS / "localhost.key")
    files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
    options = ["--port", "0", "--tls-port", "PORT", "--tls-auth-clients", "no", *files]
    with running(debian_binary(), tmp_path, *options) as port:
        url = f"rediss://localhost:{port}"
        with RedisLog.create(f"{url}?ssl_ca_certs={certificate}", plan("r"), at=1) as log:
            assert log.append(OPERATOR, steps(1, 1)) == 2
            assert len(log.read(0, 10, 20)) == 2
        with pytest.raises(ServerError, match="certificate"):
            RedisLog.open(url, "r")
        with pytest.raises(ServerError):
            RedisLog.open(f"redis://localhost:{port}", "r")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_throw_entries_away_is_refused(binary: Path, tmp_path: Path, policy: str) -> None:
    with running(binary, tmp_path, "--port", "PORT", "--maxmemory", "100mb", "--maxmemory-policy", policy) as port:
        url = f"redis://127.0.0.1:{port}"
        with pytest.raises(ServerError, match=f"maxmemory is 104857600 and maxmemory-policy is {policy}"):
            RedisLog.create(url, plan("r"), at=1)
        connection = Connection(url)
        connection.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        check_server(connection)
        connection.call("CONFIG", "SET", "maxmemory-policy", policy)
        connection.call("CONFIG", "SET", "maxmemory", "0")
        check_server(connection)
        connection.close()


@contextmanager
def server_answering(answers: Iterable[str], path: Path) -> Iterator[str]:
    """Something on a socket that answers commands with these in turn, one connection after the other: for what real servers rarely do."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    left = iter(answers)

    def serve() -> None:
        while (client := accepted(listener)) is not None:
            with client:
                while client.recv(65536):
                    client.sendall(next(left).encode())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"unix://{path}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def accepted(listener: socket.socket) -> socket.socket | None:
    try:
        return listener.accept()[0]
    except OSError:
        return None


def bulk(text: str) -> str:
    return f"${len(text)}\r\n{text}\r\n"


@pytest.mark.parametrize(
    ("info", "complaint"),
    [
        ("redis_version:6.2.14", "is Redis 6.2.14: swingshift needs Redis 7.0 or newer"),
        ("redis_version:7.2.4\r\nvalkey_version:7.1.0", "is Valkey 7.1.0: swingshift needs Valkey 7.2 or newer"),
        ("server:something else", "is Redis 0: swingshift needs Redis 7.0 or newer"),
    ],
)
def test_a_server_that_is_too_old_is_refused(tmp_path: Path, info: str, complaint: str) -> None:
    with server_answering(repeat(bulk(info)), tmp_path / "s") as url, pytest.raises(ServerError, match=complaint):
        connect(url)


@pytest.mark.parametrize("info", ["redis_version:7.0.0", "redis_version:8.4.0-rc1", "redis_version:7.2.4\r\nvalkey_version:7.2.5"])
def test_a_server_that_is_new_enough_is_taken(tmp_path: Path, info: str) -> None:
    with server_answering(repeat(bulk(info)), tmp_path / "s") as url:
        connect(url).close()


def test_a_server_that_is_still_loading_is_waited_for(tmp_path: Path) -> None:
    loading = "-LOADING Redis is loading the dataset in memory\r\n"
    with server_answering([loading, loading, *[bulk("redis_version:7.0.0")] * 2], tmp_path / "s") as url:
        connect(url).close()
    with (
        server_answering(repeat(loading), tmp_path / "t") as url,
        pytest.raises(ServerError, match=r"not ready: .*loading.* \(tried for 0\.1 s\)"),
    ):
        connect(url, patience_s=0.1)


def test_a_server_that_changes_its_role_is_as_good_as_away(tmp_path: Path) -> None:
    answers = ["-READONLY You can't write against a read only replica.\r\n", ":1\r\n"]
    with server_answering(answers, tmp_path / "s") as url:
        connection = Connection(url)
        with pytest.raises(LogUnavailable, match=r"not ready: .*read only"):
            connection.call("SET", "a", "b")
        assert not connection.is_open
        assert connection.call("SET", "a", "b") == 1
        connection.close()
