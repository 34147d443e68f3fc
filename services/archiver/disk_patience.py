"""Waiting for a disk: what it does not take is tried again until it does, for an archiver that ended would let the run's memory fill up.

action ─ DiskError ─▶ said at once, then every SAY_EVERY_S ─▶ pause, up to LONGEST_PAUSE_S ─▶ action …
                                                               └▶ meanwhile(), every IDLE_S: the janitor's turn
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bus.errors import DiskError

logger = logging.getLogger(__name__)

SAY_EVERY_S = 30.0
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 4.0
IDLE_S = 0.25

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DiskPatience:
    """Tries for as long as it takes; whoever wants it to end ends the process. `clock` is monotonic, in seconds."""

    meanwhile: Callable[[DiskError], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until_taken(self, action: Callable[[], Result]) -> Result:
        """What `action` returns once the disk takes what it writes. Raises what it raises besides DiskError."""
        began, said, pause = self.clock(), -SAY_EVERY_S, FIRST_PAUSE_S
        while True:
            try:
                result = action()
            except DiskError as error:
                waited = self.clock() - began
                if waited - said >= SAY_EVERY_S:
                    logger.warning("the disk takes nothing, trying on: waited_s=%.0f error=%s", waited, error)
                    said = waited
                self._wait(pause, error)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            if said >= 0:
                logger.warning("the disk takes entries again: waited_s=%.0f", self.clock() - began)
            return result

    def _wait(self, seconds: float, error: DiskError) -> None:
        until = self.clock() + seconds
        while (rest := until - self.clock()) > 0:
            self.meanwhile(error)
            self.sleep(min(IDLE_S, rest))
