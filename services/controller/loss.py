"""Who is gone, when no supervisor says so (`swingshift serve`): a sign of life that has lapsed is a lease that has ended.

An incarnation that cannot renew its sign of life for the whole time to live ends itself; once that time has passed twice without one, the
incarnation is taken as gone, and its exit as verified.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from bus.alive import TTL_S, living_epochs
from bus.connection import Connection
from bus.entry import Entry
from bus.errors import LogUnavailable
from bus.events import Event, PolicyAttached, ServiceLost, ServiceStarted, ServiceStopped
from services.context import ServiceContext
from services.shell import Shell

logger = logging.getLogger(__name__)

WATCHED = ("trainer", "rollouter", "policy", "replica")


class LossWatch:
    """A performer that says `ServiceLost` of services whose sign of life has lapsed for twice its time to live."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._epochs: dict[str, int] = {}
        """Source -> epoch of the incarnation that should be alive."""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._shell: Shell | None = None
        self._thread = threading.Thread(target=self._watch, name="loss-watch", daemon=True)

    def recovered(self, shell: Shell, entries: Sequence[Entry]) -> None:
        self._shell = shell
        for entry in entries:
            self._note(entry)
        self._thread.start()

    def prepare(self, events: Sequence[Event]) -> None: ...

    def look(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._note(entry)

    def close(self) -> None:
        self._ending.set()

    def _note(self, entry: Entry) -> None:
        with self._lock:
            match entry.event:
                case ServiceStarted() | PolicyAttached(mode="active") if entry.source.partition(":")[0] in WATCHED:
                    self._epochs[entry.source] = entry.epoch
                case ServiceStopped() if self._epochs.get(entry.source) == entry.epoch:
                    del self._epochs[entry.source]
                case ServiceLost() as lost if self._epochs.get(lost.service, 0) <= lost.epoch:
                    self._epochs.pop(lost.service, None)
                case _:
                    pass

    def _watch(self) -> None:
        connection = Connection(self._context.url)
        silent_since: dict[tuple[str, int], float] = {}
        while not self._ending.wait(TTL_S / 3):
            with self._lock:
                expected = list(self._epochs.items())
            try:
                living = living_epochs(connection, self._context.run, [source for source, _ in expected])
            except LogUnavailable as error:
                logger.warning("signs of life cannot be read: error=%s", error)
                silent_since = {}
                continue
            now = time.monotonic()
            silent_since = {who: silent_since.get(who, now) for who in expected if living.get(who[0], 0) < who[1]}
            self._say_lost([who for who, since in silent_since.items() if now - since > 2 * TTL_S])

    def _say_lost(self, lost: Sequence[tuple[str, int]]) -> None:
        assert self._shell is not None
        detail = f"no sign of life for {2 * TTL_S:g} s"
        facts = [(ServiceLost(service=source, epoch=epoch, restarting=True, detail=detail), self._shell.position) for source, epoch in lost]
        if facts:
            self._shell.post(facts)
            with self._lock:
                for source, _ in lost:
                    self._epochs.pop(source, None)
