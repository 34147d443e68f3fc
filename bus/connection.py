"""How connections to the server are opened, and what becomes of its refusals.

One `Connection` is one socket: no pool, and no retry that the caller does not ask for (redis-py 8 retries ten times and gives up a blocked
read after five seconds by default). A blocking reader has a connection of its own with `answer_s=None`: the server ends its wait, not a
time-out of the client's socket; a peer that died without a word is found by TCP keep-alive.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection as TcpConnection
from redis.connection import parse_url
from redis.retry import Retry

from bus.errors import ConfigError, LogUnavailable, ServerAbsent, ServerError, ServerFull

logger = logging.getLogger(__name__)

Argument: TypeAlias = bytes | str | int
Reply: TypeAlias = "bytes | int | list[Reply] | None"
Result = TypeVar("Result")

MIN_REDIS = (7, 0)
MIN_VALKEY = (7, 2)
ANSWER_S = 10.0
"""Longest wait for the answer to a command that does not block."""
PATIENCE_S = 30.0
"""How long a client tries again after it lost the server."""
DEAD_PEER = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 45_000}
"""After how long a peer that died without a word is given up: one that was waited for (s, s, probes), one that was spoken to (ms)."""
FIRST_DELAY_S = 0.02
LONGEST_DELAY_S = 1.0
TOLD_AFTER_S = 1.0
"""How long a server may be away before a user is told that it is waited for."""

HIDDEN = "***"
"""In place of a password that is not shown."""
MAKE_ROOM = (
    "raise its limit with CONFIG SET maxmemory, or delete runs that are over with `swingshift purge RUN` (`swingshift runs` lists them)"
)
DISCARDED = "Transaction discarded because of: "
TRUST = "name the certificate of its CA with REDIS_CA_FILE, redis.ca_file or ?ssl_ca_certs=FILE in the URL"

_PASSING = {"READONLY", "UNBLOCKED", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF"}
"""Error codes of a server that is about to change its role, is busy, or cannot write to its disk: as good as no server for the moment."""


Waiting = Callable[["LogUnavailable | None", float], None]
"""Is told that the server is waited for: why, and for how many seconds more; None: it answers again."""


class _Wire(Protocol):
    """What is used of redis-py's connection classes, which carry no types."""

    @property
    def is_connected(self) -> bool: ...
    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_packed_command(self, command: Sequence[bytes]) -> None: ...
    def read_response(self) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script of this package, sent once and then called by its digest."""

    text: bytes
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", sha1(self.text, usedforsecurity=False).hexdigest())

    @classmethod
    def load(cls, name: str) -> Script:
        return cls(Path(__file__).with_name(name).read_bytes())


class Connection:
    """One socket to the server; opened by the first call, and again by the next one after it was lost. Not thread-safe."""

    def __init__(self, url: str, answer_s: float | None = ANSWER_S) -> None:
        self.where = without_password(url)
        self._wire = _wire(url, answer_s)

    @property
    def is_open(self) -> bool:
        """False before the first call and after the connection was lost: what the other side knew of us is gone."""
        return self._wire.is_connected

    def open(self) -> None:
        """Connects, if it is not connected. Raises as `call` does."""
        self._ask(self._wire.connect)

    def close(self) -> None:
        self._wire.disconnect()

    def call(self, *arguments: Argument) -> Reply:
        """One command, one try. Raises LogUnavailable when the server is away, ServerError when it refuses."""
        packed = pack(arguments)

        def exchange() -> Reply:
            self._wire.send_packed_command((packed,))
            return self._wire.read_response()

        return self._ask(exchange)

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> list[Reply]:
        """Calls a script, which answers with a list. Raises as `call` does."""
        try:
            reply = self.call("EVALSHA", script.digest, len(keys), *keys, *arguments)
        except _ScriptUnknown:
            reply = self.call("EVAL", script.text, len(keys), *keys, *arguments)
        return reply if isinstance(reply, list) else [reply]

    def transact(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Commands that nobody comes between, in one exchange, one try. Raises as `call` does.

        All of them are carried out, or none where the server refuses one; one that fails by itself (a key of another type) stops no other.
        """
        packed = b"".join(map(pack, (("MULTI",), *commands, ("EXEC",))))

        def exchange() -> list[Reply]:
            self._wire.send_packed_command((packed,))
            return self._outcome(len(commands))

        return self._ask(exchange)

    def _outcome(self, num_commands: int) -> list[Reply]:
        """Reads also what follows an error: the next exchange must not get it."""
        errors: list[redis.ResponseError] = []
        reply: Reply = None
        for _ in range(1 + num_commands + 1):
            try:
                reply = self._wire.read_response()
            except redis.ResponseError as error:
                errors.append(error)
        replies = reply if isinstance(reply, list) else []
        failed = cast("list[object]", replies)
        errors += [each for each in failed if isinstance(each, redis.ResponseError)]
        if errors:
            raise errors[0]
        return replies

    def _ask(self, exchange: Callable[[], Result]) -> Result:
        try:
            return exchange()
        except (redis.AuthenticationError, redis.exceptions.AuthorizationError) as error:
            raise ServerError(
                f"{self.where} refuses the user or password: {error}; give them in the URL, as in redis://:PASSWORD@HOST, "
                "or the password in a file that REDIS_PASSWORD_FILE names"
            ) from error
        except redis.exceptions.BusyLoadingError as error:
            self.close()
            raise _NotReady(f"{self.where} is not ready: {error}") from error
        except redis.exceptions.InvalidResponse as error:
            self.close()
            raise ServerError(f"what answers at {self.where} is no Redis or Valkey: {error}; name the log's server") from error
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self.close()
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ServerError(f"{self.where} cannot prove who it is: {error}; {TRUST}") from error
            raise LogUnavailable(f"no answer from {self.where}: {error}") from error
        except redis.exceptions.NoScriptError as error:
            raise _ScriptUnknown(str(error)) from error
        except redis.ResponseError as error:
            if _code(error) in _PASSING:
                self.close()
                raise _NotReady(f"{self.where} is not ready: {error}") from error
            if _code(error) == "OOM":
                raise ServerFull(f"{self.where} is full: {error}; {MAKE_ROOM}") from error
            raise ServerError(f"{self.where} refuses a command: {error}") from error


class _ScriptUnknown(ServerError):
    """The server does not have the script yet, or lost it in a restart."""


class _NotReady(LogUnavailable):
    """The server is there and cannot serve yet."""


def connect(url: str, patience_s: float = PATIENCE_S) -> Connection:
    """A connection to a server that was found fit for a log. Raises ServerAbsent when nothing answers, ServerError when it is not fit.

    Waits for a server that answers but is still loading, not for one that is not there: a mistyped address should fail at once.
    """
    connection = Connection(url)
    try:
        connection.open()
        persist(lambda: check_server(connection), patience_s, _NotReady)
    except LogUnavailable as error:
        connection.close()
        raise ServerAbsent(
            f"{error}; start a Redis (7.0 or newer) or Valkey (7.2 or newer) server there, or name another with --redis URL"
        ) from error
    return connection


def check_server(connection: Connection) -> None:
    """Raises ServerError for a server that is too old or may throw entries away."""
    facts = _info(connection, "server") | _info(connection, "memory")
    if "valkey_version" in facts:
        name, version, oldest = "Valkey", facts["valkey_version"], MIN_VALKEY
    else:
        name, version, oldest = "Redis", facts.get("redis_version", "0"), MIN_REDIS
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        needed = ".".join(str(part) for part in oldest)
        raise ServerError(f"{connection.where} is {name} {version}: swingshift needs {name} {needed} or newer")
    limit, policy = int(facts.get("maxmemory", "0")), facts.get("maxmemory_policy", "noeviction")
    if limit > 0 and policy != "noeviction":
        raise ServerError(
            f"{connection.where} may throw entries away: maxmemory is {limit} and maxmemory-policy is {policy}; "
            "set it with CONFIG SET maxmemory-policy noeviction"
        )


def check_room(connection: Connection) -> None:
    """Raises ServerError for a server that is full: a run should not begin there."""
    used, limit = memory_of(connection)
    if 0 < limit <= used:
        raise ServerError(f"{connection.where} is full: {used} of {limit} bytes (maxmemory) are used; {MAKE_ROOM}")


def memory_of(connection: Connection) -> tuple[int, int]:
    """Bytes that the server uses, and most that it may use (0: no limit). Raises as `Connection.call` does."""
    facts = _info(connection, "memory")
    return int(facts.get("used_memory", "0")), int(facts.get("maxmemory", "0"))


def persist(
    action: Callable[[], Result],
    patience_s: float,
    waits_for: type[LogUnavailable] = LogUnavailable,
    waiting: Waiting | None = None,
) -> Result:
    """Repeats `action` while it raises `waits_for`, with growing pauses; lets it through when `patience_s` have passed since the first."""
    give_up = math.inf
    delay = FIRST_DELAY_S
    told = False
    while True:
        try:
            result = action()
        except waits_for as error:
            if isinstance(error, ServerFull) and math.isinf(give_up):
                logger.warning("waiting for room, for at most %g s: %s", patience_s, error)
            give_up = min(give_up, time.monotonic() + patience_s)
            left_s = give_up - time.monotonic()
            if delay > left_s:
                raise type(error)(f"{error} (tried for {patience_s:g} s)") from error
            if waiting is not None and not told and patience_s - left_s >= TOLD_AFTER_S:
                told = True
                waiting(error, left_s)
        else:
            if told and waiting is not None:
                waiting(None, patience_s)
            return result
        time.sleep(delay)
        delay = min(2 * delay, LONGEST_DELAY_S)


def pack(arguments: Sequence[Argument]) -> bytes:
    """A command as it goes over the wire. Own code, for redis-py's costs more than everything else in an append of many entries."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def without_password(url: str) -> str:
    """The URL as messages may show it."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0] + f':{HIDDEN}@' if user else ''}{host}{parts.path}"


def _wire(url: str, answer_s: float | None) -> _Wire:
    try:
        options = cast(Callable[[str], dict[str, object]], parse_url)(url)
    except ValueError as error:
        raise ConfigError(
            f"{without_password(url)} is no server URL ({error}): use redis://HOST:PORT, rediss://… or unix:///PATH"
        ) from error
    authority = options.get("ssl_ca_certs")
    if isinstance(authority, str) and not Path(authority).is_file():
        raise ConfigError(f"{without_password(url)} is to be trusted by {authority}: there is no such file; name the CA's certificate")
    connection_class = cast("type[_Wire]", options.pop("connection_class", TcpConnection))
    options.update(socket_timeout=answer_s, retry=Retry(NoBackoff(), 0), protocol=2, driver_info=None)
    options.setdefault("socket_connect_timeout", ANSWER_S)
    if issubclass(connection_class, TcpConnection):
        options.setdefault("socket_keepalive_options", DEAD_PEER)
    try:
        return connection_class(**options)
    except TypeError as error:
        raise ConfigError(f"{without_password(url)} has an option that is not known: {error}") from error


def _info(connection: Connection, section: str) -> dict[str, str]:
    reply = connection.call("INFO", section)
    text = reply.decode() if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _code(error: redis.ResponseError) -> str:
    """First word of the server's message, which redis-py cuts off where it knows it; of a transaction's, that of its reason."""
    if error.status_code == "EXECABORT":
        return str(error).removeprefix(DISCARDED).partition(" ")[0]
    return error.status_code or str(error).partition(" ")[0]
