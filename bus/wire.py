"""How a socket to the server is opened, and how a command goes over it.

One socket: no pool, and no retry that the caller does not ask for (redis-py 8 retries ten times and gives up a blocked read after five
seconds by default). A blocking reader has one of its own with `answer_s=None`: the server ends its wait, not a time-out of the client's; a
peer that died without a word is found by TCP keep-alive.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import hiredis
from redis.backoff import NoBackoff
from redis.connection import Connection as TcpConnection
from redis.connection import parse_url
from redis.retry import Retry

from bus.errors import ConfigError

Argument: TypeAlias = bytes | str | int
Reply: TypeAlias = "bytes | int | list[Reply] | None"

ANSWER_S = 10.0
"""Longest wait for the answer to a command that does not block."""
DEAD_PEER = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 45_000}
"""After how long a peer that died without a word is given up: one that was waited for (s, s, probes), one that was spoken to (ms)."""
HIDDEN = "***"
"""In place of a password that is not shown."""


class Wire(Protocol):
    """What is used of redis-py's connection classes, which carry no types."""

    @property
    def is_connected(self) -> bool: ...
    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_packed_command(self, command: Sequence[bytes]) -> None: ...
    def read_response(self) -> Reply: ...


def open_wire(url: str, answer_s: float | None) -> Wire:
    """Not connected yet. Raises ConfigError for a URL that cannot be used."""
    try:
        options = cast(Callable[[str], dict[str, object]], parse_url)(url)
    except ValueError as error:
        raise ConfigError(
            f"{without_password(url)} is no server URL ({error}): use redis://HOST:PORT, rediss://… or unix:///PATH"
        ) from error
    authority = options.get("ssl_ca_certs")
    if isinstance(authority, str) and not Path(authority).is_file():
        raise ConfigError(f"{without_password(url)} is to be trusted by {authority}: there is no such file; name the CA's certificate")
    connection_class = cast("type[Wire]", options.pop("connection_class", TcpConnection))
    options.update(socket_timeout=answer_s, retry=Retry(NoBackoff(), 0), protocol=2, driver_info=None)
    options.setdefault("socket_connect_timeout", ANSWER_S)
    if issubclass(connection_class, TcpConnection):
        options.setdefault("socket_keepalive_options", DEAD_PEER)
    try:
        return connection_class(**options)
    except TypeError as error:
        raise ConfigError(f"{without_password(url)} has an option that is not known: {error}") from error


def pack(arguments: Sequence[Argument]) -> bytes:
    """A command as it goes over the wire. Not redis-py's, which costs more than everything else in an append of many entries."""
    return cast(bytes, hiredis.pack_command(tuple(arguments)))  # type: ignore[arg-type]  # it says a tuple of one


def without_password(url: str) -> str:
    """The URL as messages may show it."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0] + f':{HIDDEN}@' if user else ''}{host}{parts.path}"
