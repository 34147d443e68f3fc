"""What a test sees of a server's clients, and of a read that waits in another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

from bus.connection import Connection
from bus.entry import Entry
from bus.errors import LogChanged, LogUnavailable


def in_thread(action: Callable[[], Sequence[Entry]]) -> tuple[threading.Thread, list[Entry | Exception]]:
    """Runs `action` in a thread; its entries, or its error, are in the list when the thread has ended."""
    outcome: list[Entry | Exception] = []

    def run() -> None:
        try:
            outcome.extend(action())
        except (LogChanged, LogUnavailable) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def clients(server: Connection) -> list[dict[bytes, bytes]]:
    """What the server knows of its clients."""
    lines = cast(bytes, server.call("CLIENT", "LIST")).splitlines()
    return [dict(word.partition(b"=")[::2] for word in line.split()) for line in lines]


def client_ids(server: Connection) -> list[bytes]:
    return [client[b"id"] for client in clients(server)]


def blocked_client(server: Connection) -> bytes:
    """Id of the one client that waits in XREAD, as soon as there is one."""
    while True:
        for client in clients(server):
            if client[b"cmd"] == b"xread" and b"b" in client[b"flags"]:
                return client[b"id"]


def positions(entries: Sequence[Entry | Exception]) -> list[int]:
    return [entry.position for entry in entries if isinstance(entry, Entry)]
