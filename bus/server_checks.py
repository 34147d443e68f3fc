"""Whether a server is fit for a log: its version, whether it may throw entries away, and whether it has room."""

from __future__ import annotations

from bus.connection import MAKE_ROOM, Connection, NotReady
from bus.errors import LogUnavailable, ServerAbsent, ServerError
from bus.patience import PATIENCE_S, persist

MIN_REDIS = (7, 0)
MIN_VALKEY = (7, 2)


def connect(url: str, patience_s: float = PATIENCE_S) -> Connection:
    """A connection to a server that was found fit for a log. Raises ServerAbsent when nothing answers, ServerError when it is not fit.

    Waits for a server that answers but is still loading, not for one that is not there: a mistyped address should fail at once.
    """
    connection = Connection(url)
    try:
        connection.open()
        persist(lambda: check_server(connection), patience_s, NotReady)
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


def _info(connection: Connection, section: str) -> dict[str, str]:
    reply = connection.call("INFO", section)
    text = reply.decode() if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
