"""Snapshots of a live service's core, so that its successor, and whoever looks at the recording, need not fold the whole log.

    shell: entries taken ─ every few thousand ─▶ frozen core ─ its decisions read back ─▶ the server ─▶ archiver ─▶ the recording
    successor of the same code: newest one of this log ─▶ core, and only the entries after it are read

They only save time: whatever goes wrong with them is said in the service's log, and the entries are read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bus.core import Core
from bus.entry import Entry
from bus.errors import CodecError, LogError, ServerError
from bus.events import RunEnded
from bus.history import History
from bus.recording import FILE_NAME
from bus.redis_snapshots import RedisSnapshots
from bus.snapshot import freeze, thaw_into
from bus.snapshot_table import SNAPSHOT_EVERY, Snapshot, SnapshotTable
from services.context import ServiceContext

logger = logging.getLogger(__name__)

UNLUCKY = (CodecError, LogError, ServerError)
MOST_SHARE = 0.02
"""Of a service's time that snapshots may take: with tens of thousands of requests in flight one takes a second."""
SOON_DONE_S = 0.05
"""One that takes no longer is made whenever it is its turn."""


class Snapshots:
    """Those of one incarnation. `code`: `bus.snapshot_table.core_code` of what it runs."""

    def __init__(self, context: ServiceContext, source: str, code: str, every: int = SNAPSHOT_EVERY) -> None:
        self._context = context
        self._source = source
        self._code = code
        self._every = every
        self._server = RedisSnapshots(context.url, context.run)
        self._epoch = 0
        self._last = 0
        """Position of the newest one."""
        self._not_before = 0.0
        """When the next one may be made."""
        self._frozen: Snapshot | None = None
        """One that is not put away yet."""
        self._over = False
        """There will be no more: the run has ended, a successor is there, or the state cannot be frozen."""

    def close(self) -> None:
        self._server.close()

    def restore(self, core: Core, history: History, before: int) -> Snapshot | None:
        """Gives a fresh core the state of the newest one before `before` that is of use; None: there is none."""
        for snapshot in self._found(before):
            try:
                if history.read(snapshot.through - 1, 1)[0].chain != snapshot.chain:
                    continue
                thaw_into(core, snapshot.core)
            except UNLUCKY as error:
                logger.warning("snapshot not used: position=%d error=%s", snapshot.position, error)
            else:
                logger.info("goes on from a snapshot: position=%d bytes=%d", snapshot.position, len(snapshot.core))
                return snapshot
        return None

    def _found(self, before: int) -> Iterator[Snapshot]:
        """The one on the server, else the newest one in the recording, if that is on this machine."""
        for find in (self._on_server, self._in_recording):
            try:
                snapshot = find(before)
            except UNLUCKY as error:
                logger.warning("no snapshot is found: error=%s", error)
                continue
            if snapshot is not None and snapshot.code == self._code and snapshot.through < before and snapshot.decided_at is not None:
                yield snapshot

    def _on_server(self, before: int) -> Snapshot | None:
        return self._server.get(self._source)

    def _in_recording(self, before: int) -> Snapshot | None:
        if not (self._context.folder / FILE_NAME).is_file():
            return None
        with SnapshotTable.open(self._context.folder) as table:
            position = table.position_before(self._source, self._code, before - 1)
            return None if position is None else table.get(self._source, self._code, position)

    def begin(self, epoch: int, position: int) -> None:
        """The incarnation serves from here on."""
        self._epoch, self._last = epoch, position

    def look(self, core: Core, entries: Sequence[Entry], decided_at: Mapping[str, int]) -> None:
        """The core has taken these, and all decisions on them are in the log: it is time, or not."""
        newest = entries[-1]
        self._over = self._over or any(self._ends(entry) for entry in entries)
        if self._over:
            return
        if newest.position >= self._last + self._every and time.monotonic() >= self._not_before:
            self._last = newest.position
            self._freeze(core, newest.position, decided_at)
        if self._frozen is not None and newest.position >= self._frozen.through:
            self._put(replace(self._frozen, through=newest.position, chain=newest.chain))
            self._frozen = None

    def _freeze(self, core: Core, position: int, decided_at: Mapping[str, int]) -> None:
        began = time.monotonic()
        self._make(core, position, decided_at)
        took_s = time.monotonic() - began
        self._not_before = began + took_s / MOST_SHARE if took_s > SOON_DONE_S else 0.0

    def _make(self, core: Core, position: int, decided_at: Mapping[str, int]) -> None:
        """It is put away when the decisions in it have come back from the log: what is lost of them must not live on in it."""
        through = max(position, *decided_at.values()) if decided_at else position
        try:
            self._frozen = Snapshot(self._source, self._code, position, through, "", freeze(core), dict(decided_at))
        except CodecError as error:
            logger.warning("there will be no snapshots: error=%s", error)
            self._over = True

    def _put(self, snapshot: Snapshot) -> None:
        try:
            self._server.put(snapshot)
        except (LogError, ServerError) as error:
            logger.warning("snapshot not kept: position=%d error=%s", snapshot.position, error)

    def _ends(self, entry: Entry) -> bool:
        return isinstance(entry.event, RunEnded) or (entry.source == self._source and entry.epoch > self._epoch)
