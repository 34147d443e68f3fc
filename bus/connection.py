"""One connection to the server, and what becomes of its refusals.

Connection ─ call, exchange, transact, run ─▶ Wire (bus/wire.py) ─▶ server        no answer: LogUnavailable      refused: ServerError
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import TypeVar, cast

import redis

from bus.errors import LogUnavailable, ServerError, ServerFull
from bus.wire import ANSWER_S, Argument, Reply, open_wire, pack, without_password

Result = TypeVar("Result")

MAKE_ROOM = (
    "raise its limit with CONFIG SET maxmemory, or delete runs that are over with `swingshift purge RUN` (`swingshift runs` lists them)"
)
DISCARDED = "Transaction discarded because of: "
TRUST = "name the certificate of its CA with REDIS_CA_FILE, redis.ca_file or ?ssl_ca_certs=FILE in the URL"

_PASSING = {"READONLY", "UNBLOCKED", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF"}
"""Error codes of a server that is about to change its role, is busy, or cannot write to its disk: as good as no server for the moment."""


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
        self._wire = open_wire(url, answer_s)

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

    def exchange(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Commands in one exchange, one try, each carried out by itself after the one before it. Raises as `call` does.

        What goes behind a command that waits is carried out when the wait is over, without one more wake-up on either side.
        """
        packed = b"".join(map(pack, commands))

        def exchange() -> list[Reply]:
            self._wire.send_packed_command((packed,))
            return self._replies(len(commands))

        return self._ask(exchange)

    def transact(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Commands that nobody comes between, in one exchange, one try. Raises as `call` does.

        All of them are carried out, or none where the server refuses one; one that fails by itself (a key of another type) stops no other.
        """
        packed = b"".join(map(pack, (("MULTI",), *commands, ("EXEC",))))

        def exchange() -> list[Reply]:
            self._wire.send_packed_command((packed,))
            replies = cast("list[Reply]", self._replies(1 + len(commands) + 1)[-1])
            failed = [each for each in cast("list[object]", replies) if isinstance(each, redis.ResponseError)]
            if failed:
                raise failed[0]
            return replies

        return self._ask(exchange)

    def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], behind: Sequence[Sequence[Argument]] = ()
    ) -> list[Reply]:
        """Calls a script, which answers with a list; `behind` other commands, if there are any, in one transaction. Raises as `call` does.

        The others are carried out twice when the server does not know the script yet.
        """
        what = (len(keys), *keys, *arguments)
        try:
            reply = self._last(*behind, ("EVALSHA", script.digest, *what))
        except _ScriptUnknown:
            reply = self._last(*behind, ("EVAL", script.text, *what))
        return reply if isinstance(reply, list) else [reply]

    def _last(self, *commands: Sequence[Argument]) -> Reply:
        return self.transact(*commands)[-1] if len(commands) > 1 else self.call(*commands[0])

    def _replies(self, count: int) -> list[Reply]:
        """Reads also what follows an error: the next exchange must not get it."""
        replies: list[Reply] = []
        errors: list[redis.ResponseError] = []
        for _ in range(count):
            try:
                replies.append(self._wire.read_response())
            except redis.ResponseError as error:
                errors.append(error)
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
            raise NotReady(f"{self.where} is not ready: {error}") from error
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
                raise NotReady(f"{self.where} is not ready: {error}") from error
            if _code(error) == "OOM":
                raise ServerFull(f"{self.where} is full: {error}; {MAKE_ROOM}") from error
            raise ServerError(f"{self.where} refuses a command: {error}") from error


class _ScriptUnknown(ServerError):
    """The server does not have the script yet, or lost it in a restart."""


class NotReady(LogUnavailable):
    """The server is there and cannot serve yet."""


def _code(error: redis.ResponseError) -> str:
    """First word of the server's message, which redis-py cuts off where it knows it; of a transaction's, that of its reason."""
    if error.status_code == "EXECABORT":
        return str(error).removeprefix(DISCARDED).partition(" ")[0]
    return error.status_code or str(error).partition(" ")[0]
