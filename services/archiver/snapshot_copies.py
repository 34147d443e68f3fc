"""Copies the services' snapshots from the server into the recording, each as soon as all that is in it is recorded.

There is one a service on the server, the newest; one that is replaced before it was copied is missed, and nothing is lost by it. With
tens of thousands of requests in flight one has several megabytes: it is fetched again only when its size has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from bus.errors import CodecError, LogError, ServerError
from bus.recording import Row
from bus.redis_snapshots import RedisSnapshots
from bus.snapshot_table import Snapshot, SnapshotTable

logger = logging.getLogger(__name__)

EVERY_S = 1.0
SMALL_BYTES = 64 << 10
"""Up to this size one is fetched each time, for it may have changed without another size."""


class SnapshotCopies:
    """Called with what was recorded, several times a second; a context manager."""

    def __init__(self, snapshots: RedisSnapshots, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._snapshots = snapshots
        self._folder = folder
        self._clock = clock
        self._look_at = clock() + EVERY_S
        self._copied: dict[str, int] = {}
        """Source -> position of the newest one that was copied."""
        self._sizes: dict[str, int] = {}
        """Source -> size of the one that was fetched last."""
        self._held: dict[str, Snapshot] = {}
        """Source -> that one, until it is copied."""
        self._recorded = 0

    def __enter__(self) -> SnapshotCopies:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Copies what is left to copy at the end."""
        self._copy()
        self._snapshots.close()

    def take(self, rows: Sequence[Row]) -> None:
        """These are on the disk."""
        if rows:
            self._recorded = rows[-1].position
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + EVERY_S
            self._copy()

    def _is_new(self, snapshot: Snapshot) -> bool:
        return self._copied.get(snapshot.source, 0) < snapshot.position and snapshot.through <= self._recorded

    def _fetch(self) -> None:
        for source, size in self._snapshots.sizes().items():
            if size <= SMALL_BYTES or size != self._sizes.get(source):
                snapshot = self._snapshots.get(source)
                if snapshot is not None:
                    self._held[source], self._sizes[source] = snapshot, size

    def _copy(self) -> None:
        try:
            self._fetch()
            found = [each for each in self._held.values() if self._is_new(each)]
            if found:
                with SnapshotTable.open(self._folder) as table:
                    table.put(found)
                self._copied.update((each.source, each.position) for each in found)
            self._held = {source: each for source, each in self._held.items() if self._copied.get(source, 0) < each.position}
        except (CodecError, LogError, ServerError) as error:
            # They can be made again from the entries; the archiver has more important things to wait for.
            logger.info("snapshots not copied: error=%s", error)
