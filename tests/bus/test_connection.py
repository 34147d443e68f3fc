"""What is asked of a server before it is used, and what is said about one that cannot be."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import repeat
from pathlib import Path
from typing import cast

import pytest

from bus.alive import Alive, living_epochs
from bus.blobs import DIGEST_BYTES
from bus.connection import Connection
from bus.entry import Producer
from bus.errors import ConfigError, LogUnavailable, ServerError, ServerFull
from bus.keys import Keys
from bus.patience import persist
from bus.redis_blobs import KEY_BYTES, RedisBlobs, storing
from bus.redis_log import RedisLog
from bus.runs import purge
from bus.server_checks import check_server, connect
from bus.trimming import Trimming
from bus.wire import without_password
from tests.bus.factories import plan, steps
from tests.bus.servers import CERTIFICATE, running, tls_options
from tests.conftest import debian_binary, wheel_binary

OPERATOR = Producer("operator", 0)


@pytest.fixture(params=[debian_binary, wheel_binary], ids=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    find: Callable[[], Path] = request.param
    return find()


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
            with pytest.raises(ServerError, match=r"refuses the user or password.*REDIS_PASSWORD_FILE") as caught:
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
    with running(debian_binary(), tmp_path, *tls_options()) as port:
        url = f"rediss://localhost:{port}"
        with RedisLog.create(f"{url}?ssl_ca_certs={CERTIFICATE}", plan("r"), at=1) as log:
            assert log.append(OPERATOR, steps(1, 1)) == 2
            assert len(log.read(0, 10, 20)) == 2
        with pytest.raises(
            ServerError, match=r"cannot prove who it is: .*certificate verify failed.* name the certificate of its CA with REDIS_CA_FILE"
        ):
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


def test_a_certificate_that_is_not_there_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is to be trusted by .*none\.pem: there is no such file"):
        connect(f"rediss://localhost:1?ssl_ca_certs={tmp_path / 'none.pem'}")


def test_a_run_is_not_begun_on_a_server_that_is_full(binary: Path, tmp_path: Path) -> None:
    with running(binary, tmp_path, "--port", "PORT", "--maxmemory", "1000") as port:
        words = r"is full: \d+ of 1000 bytes \(maxmemory\) are used; raise its limit .* `swingshift purge RUN`"
        with pytest.raises(ServerError, match=words):
            RedisLog.create(f"redis://127.0.0.1:{port}", plan("r"), at=1)


def test_on_a_full_server_room_can_be_made_and_signs_of_life_are_given(binary: Path, tmp_path: Path) -> None:
    with running(binary, tmp_path, "--port", "PORT") as port:
        url = f"redis://127.0.0.1:{port}"
        operator = Connection(url)
        with RedisLog.create(url, plan("r"), at=1) as log:
            log.append(OPERATOR, steps(1, 10))
            blobs, trimming = RedisBlobs(url, "r", patience_s=0.1), Trimming(url, "r", log.log_id)
            blobs.put("a", b"x" * 1000)
            operator.call("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(ServerFull, match="is full"):
                blobs.put("b", b"x")
            assert operator.call("EXISTS", Keys("r").blob("b")) == 0
            assert counted(operator, "r") == (taken("r", "a", 1000), 1)
            with Alive(url, "r", "trainer", 1):
                assert living_epochs(operator, "r", ["trainer"]) == {"trainer": 1}
            assert trimming.trim(5) == 5
            blobs.delete(["a", "unknown"])
            assert operator.call("HGET", Keys("r").size, "bytes") == b"0"
            assert purge(operator, "r", lambda deleted: None)[0] == 3
            blobs.close()
            trimming.close()
        operator.close()


def test_a_server_that_gets_full_in_the_midst_of_a_transaction_carries_out_nothing_and_is_asked_again(binary: Path, tmp_path: Path) -> None:
    with running(binary, tmp_path, "--port", "PORT") as port:
        url, keys = f"redis://127.0.0.1:{port}", Keys("r")
        with closing(Connection(url)) as writer, closing(Connection(url)) as operator:
            for command in (("MULTI",), *storing(keys.size, {keys.blob("a"): b"x" * 1000})):
                writer.call(*command)
            operator.call("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(ServerFull, match=r"is full: Transaction discarded because of: .*maxmemory"):
                writer.call("EXEC")
            assert operator.call("EXISTS", keys.size, keys.blob("a")) == 0
            with pytest.raises(ServerFull, match=r"is full: .*maxmemory"):
                writer.transact(*storing(keys.size, {keys.blob("a"): b"x" * 1000}))
            operator.call("CONFIG", "SET", "maxmemory", "0")
            assert writer.transact(*storing(keys.size, {keys.blob("a"): b"x" * 984})) == [[b"ok"], b"OK"]
            assert counted(operator, "r") == (taken("r", "a", 968), 1)
            assert operator.call("STRLEN", keys.blob("a")) == 984


def test_a_command_that_fails_in_a_transaction_is_an_error_and_the_next_exchange_gets_its_own_answers(server_url: str, run: str) -> None:
    key = Keys(run).meta
    with closing(Connection(server_url)) as connection:
        with pytest.raises(ServerError, match="wrong number of arguments"):
            connection.transact(("HSET", key, "a", 1), ("HSET", key))
        assert connection.call("EXISTS", key) == 0
        with pytest.raises(ServerError, match="wrong kind of value"):
            connection.transact(("HSET", key, "a", 1), ("GET", key), ("HGET", key, "a"))
        assert connection.transact(("HGET", key, "a"), ("DEL", key)) == [b"1", 1]
        assert connection.call("PING") == b"PONG"


@pytest.mark.parametrize("allowed", [True, False])
def test_a_sign_of_life_is_renewed_whether_or_not_another_may_be_watched(
    binary: Path, tmp_path: Path, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with running(binary, tmp_path, "--port", "PORT") as port, closing(Connection(f"redis://127.0.0.1:{port}")) as owner:
        rights = ("~*",) if allowed else (f"~{Keys('r').alive('trainer')}",)
        owner.call("ACL", "SETUSER", "guest", "on", ">word", *rights, "+@all")
        with Alive(f"redis://guest:word@127.0.0.1:{port}", "r", "trainer", 1, ttl_s=0.3, watched="controller"):
            owner.call("SCRIPT", "FLUSH")
            give_up = time.monotonic() + 30.0
            for _ in range(3):
                # Nobody but its next renewal brings it back.
                owner.call("DEL", Keys("r").alive("trainer"))
                while not living_epochs(owner, "r", ["trainer"]) and time.monotonic() < give_up:
                    time.sleep(0.01)
            assert living_epochs(owner, "r", ["trainer"]) == {"trainer": 1}
    assert ["cannot be watched" in record.getMessage() for record in caplog.records] == ([] if allowed else [True])


def test_of_commands_in_one_exchange_one_that_fails_stops_no_other_and_the_next_exchange_gets_its_own_answers(
    server_url: str, run: str
) -> None:
    key = Keys(run).meta
    with closing(Connection(server_url)) as connection:
        assert connection.exchange(("HSET", key, "a", 1), ("HGET", key, "a"), ("XREAD", "BLOCK", 1, "STREAMS", "none", 0), ("PING",)) == [
            1, b"1", None, b"PONG",
        ]  # fmt: skip
        with pytest.raises(ServerError, match="wrong kind of value"):
            connection.exchange(("GET", key), ("HSET", key, "a", 2), ("NO-SUCH-COMMAND",))
        assert connection.exchange(("HGET", key, "a")) == [b"2"]
        assert connection.call("DEL", key) == 1


def counted(connection: Connection, run: str) -> tuple[int, int]:
    """Bytes and payloads."""
    values = cast("list[bytes]", connection.call("HMGET", Keys(run).size, "bytes", "payloads"))
    return int(values[0]), int(values[1])


def taken(run: str, name: str, num_bytes: int) -> int:
    """What a payload of so many bytes counts."""
    return len(Keys(run).blob(name)) + KEY_BYTES + DIGEST_BYTES + num_bytes


def test_who_waits_for_a_server_longer_than_a_moment_is_told_so_and_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.patience.TOLD_AFTER_S", 0.05)
    told: list[str] = []
    tries = iter([LogUnavailable("away")] * 6)

    def action() -> str:
        for error in tries:
            raise error
        return "here"

    def waiting(error: LogUnavailable | None, seconds: float) -> None:
        told.append("back" if error is None else f"{error}, {seconds:.0f}")

    assert persist(action, 20.0, waiting=waiting) == "here"
    assert told == ["away, 20", "back"]
