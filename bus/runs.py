"""Which runs a server has."""

from __future__ import annotations

from typing import cast

from bus.connection import Connection
from bus.keys import RUNS, Keys


def list_runs(connection: Connection) -> list[str]:
    """Ids of the runs that have a log on this server, in alphabetical order. Raises LogUnavailable, ServerError."""
    names = sorted(name.decode() for name in cast("list[bytes]", connection.call("SMEMBERS", RUNS)))
    return [name for name in names if connection.call("EXISTS", Keys(name).meta) == 1]
