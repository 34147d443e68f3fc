"""Which runs a server has, who of a run is alive, and how it is deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from bus.connection import Connection, Script
from bus.keys import RUNS, Keys

PURGE = Script.load("purge.lua")
MOST_KEYS = 500
"""Keys deleted in one call; the server answers nobody else meanwhile."""
SCANNED = 1000
"""Keys, of all runs, that the server looks at in one call."""
ROUNDS = 3
"""A service that is still there may write a key behind the first round."""


def list_runs(connection: Connection) -> list[str]:
    """Ids of the runs that have a log on this server, in alphabetical order. Raises LogUnavailable, ServerError."""
    names = sorted(name.decode() for name in cast("list[bytes]", connection.call("SMEMBERS", RUNS)))
    return [name for name in names if connection.call("EXISTS", Keys(name).meta) == 1]


def run_keys(connection: Connection, run: str) -> list[str]:
    """All keys of a run, those that make it a run first. Raises LogUnavailable, ServerError."""
    keys = Keys(run)
    found: dict[str, None] = {}
    cursor = b"0"
    while True:
        cursor, page = cast("tuple[bytes, list[bytes]]", connection.call("SCAN", cursor, "MATCH", f"{keys.prefix}*", "COUNT", SCANNED))
        found.update((key.decode(), None) for key in page)
        if cursor == b"0":
            break
    return sorted(found, key=lambda key: (key not in (keys.meta, keys.log), key))


def living_services(connection: Connection, run: str) -> dict[str, int]:
    """Service -> epoch of those of a run that show a sign of life. Raises LogUnavailable, ServerError."""
    start = Keys(run).alive("")
    signs = [key for key in run_keys(connection, run) if key.startswith(start)]
    values = {key.removeprefix(start): connection.call("GET", key) for key in signs}
    return {service: int(value) for service, value in values.items() if isinstance(value, bytes)}


def purge(connection: Connection, run: str, progress: Callable[[int], None]) -> tuple[int, int]:
    """Deletes all keys of a run; returns how many and the bytes they took. `progress` is told the number so far.

    The log goes first, so that nobody appends behind it. Raises LogUnavailable, ServerError.
    """
    deleted = freed = 0
    for _ in range(ROUNDS):
        keys = run_keys(connection, run)
        if not keys:
            break
        for first in range(0, len(keys), MOST_KEYS):
            _, count, size = cast("list[int]", connection.run(PURGE, keys[first : first + MOST_KEYS], []))
            deleted, freed = deleted + count, freed + size
            progress(deleted)
    connection.call("SREM", RUNS, run)
    return deleted, freed
