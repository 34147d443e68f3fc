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
from bus.events import Event, ServiceLost
from services.context import ServiceContext
from services.controller.core import ControllerCore
from services.shell import Shell

logger = logging.getLogger(__name__)


class LossWatch:
    """A performer that says `ServiceLost` of services whose sign of life has lapsed for twice its time to live."""

    def __init__(self, context: ServiceContext, core: ControllerCore) -> None:
        self._context = context
        self._core = core
        self._epochs: dict[str, int] = {}
        """Source -> epoch of the incarnation that should be alive, as the watching thread sees it."""
        self._said: dict[str, int] = {}
        """Source -> newest epoch that this incarnation has called lost, perhaps not in the log yet."""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._shell: Shell | None = None
        self._thread = threading.Thread(target=self._watch, name="loss-watch", daemon=True)

    def recovered(self, shell: Shell) -> None:
        self._shell = shell
        self.look(())
        self._thread.start()

    def prepare(self, events: Sequence[Event]) -> None: ...

    def look(self, entries: Sequence[Entry]) -> None:
        with self._lock:
            self._epochs = dict(self._core.expected.epochs)

    def durable(self, position: int) -> int:
        return position

    def close(self) -> None:
        self._ending.set()

    def _watch(self) -> None:
        connection = Connection(self._context.url)
        silent_since: dict[tuple[str, int], float] = {}
        while not self._ending.wait(TTL_S / 3):
            with self._lock:
                expected = [(source, epoch) for source, epoch in self._epochs.items() if epoch > self._said.get(source, 0)]
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
            self._said.update(lost)
