"""A log that the server lost, or that is not the recorded one any more, made anew from the end of its recording.

    recording ─▶ restore ─▶ {swingshift:RUN}:log: some of the newest entries; everything older is read in the recording

The new log has an identity of its own and epochs above all recorded ones, so whoever knew the old one is refused and must start anew.
The chain goes on: it does not depend on the identity.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import cast

from bus.connection import Connection, Script
from bus.errors import LogChanged
from bus.keys import RUNS, Keys
from bus.patience import PATIENCE_S, persist
from bus.recording import Recording, Row
from bus.runs import run_keys
from bus.wire import Argument

RESTORE = Script.load("restore.lua")
MOST_ENTRIES = 2_000
"""So many of the newest entries are enough for who only looks at the end of the log; one script call writes them."""
MOST_BYTES = 4 << 20
"""Bodies in that call; the newest entry is written, however large."""


def restore(
    connection: Connection,
    run: str,
    newest: Sequence[Row],
    epochs: Mapping[str, int],
    replaces: str | None,
    aside_from: int,
    patience_s: float = PATIENCE_S,
) -> str:
    """Makes the log that ends with `newest`; returns its identity. `epochs`: source -> the newest incarnation that was recorded.

    `replaces`: identity of the log that the server has, None when it has none. What that one holds from `aside_from` on is kept under
    `log:ITS-IDENTITY` until the run is purged. Payloads stay as they are. Raises LogChanged when the server's log is another one.
    """
    keys, log_id = Keys(run), uuid.uuid4().hex
    kept = (keys.log, keys.meta, keys.former_log(""), keys.blob(""), keys.alive(""), keys.size)
    stale = [key for key in persist(lambda: run_keys(connection, run), patience_s) if not key.startswith(kept)]
    raised: list[Argument] = [part for source, epoch in sorted(epochs.items()) for part in (source, epoch + 1)]
    arguments: list[Argument] = [replaces or "", f"{aside_from}-0", log_id, len(epochs), *raised]
    arguments += [part for row in newest for part in row]
    # Before the log itself, as when a run is created.
    persist(lambda: connection.call("SADD", RUNS, run), patience_s)
    reply = persist(
        lambda: connection.run(RESTORE, [keys.log, keys.meta, keys.former_log(replaces or log_id), *stale], arguments), patience_s
    )
    another = "" if reply[0] == b"ok" else cast("list[bytes]", reply)[1].decode()
    if reply[0] != b"ok" and another != log_id:  # that one: the answer to the first try was lost
        raise LogChanged(f"run {run}: the server's log is {another or 'gone'}, a moment ago it was {replaces}: somebody else works on it")
    return log_id


def newest_rows(recording: Recording) -> list[Row]:
    """The end of a recording, as much of it as a log is made of anew. Raises LogError, CodecError."""
    last, rows, num_bytes = recording.last_position(), list[Row](), 0
    for row in reversed(list(recording.rows(max(1, last - MOST_ENTRIES + 1), last))):
        num_bytes += len(row.body)
        if rows and num_bytes > MOST_BYTES:
            break
        rows.append(row)
    return rows[::-1]
