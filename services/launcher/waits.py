"""Tells the user which services wait for a place, and when they have got it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from services.launcher.protocol import Handle, Say

logger = logging.getLogger(__name__)

TELL_AFTER_S = 10.0
"""A start may take so long without being told."""


@dataclass
class Wait:
    """One service's."""

    handle: Handle
    what: str
    since: float
    told: bool = False


class Waits:
    """Of one run. Times are those of one monotonic clock."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._waits: dict[str, Wait] = {}

    def look(self, running: Sequence[tuple[str, Handle]], now: float) -> None:
        """`running`: (source, incarnation) of all that have not ended."""
        waiting = {source: (handle, what) for source, handle in running if (what := handle.waits_for())}
        over = [source for source, wait in self._waits.items() if source not in waiting or waiting[source][0] is not wait.handle]
        self._forget(over, running, now)
        due: dict[str, list[str]] = {}
        for source, (handle, what) in waiting.items():
            wait = self._waits.setdefault(source, Wait(handle, what, now))
            if what != wait.what:
                wait.what, wait.told = what, False
            if not wait.told and now - wait.since >= TELL_AFTER_S:
                wait.told = True
                logger.warning("waits: source=%s for=%s seconds=%.0f", source, what, now - wait.since)
                due.setdefault(f"for {what}, for {now - wait.since:.0f} s so far", []).append(source)
        for words, sources in due.items():
            self._say(f"{', '.join(sources)} {'waits' if len(sources) == 1 else 'wait'} {words}")

    def _forget(self, sources: Sequence[str], running: Sequence[tuple[str, Handle]], now: float) -> None:
        """They wait no more; said of those who were said to, and got a place."""
        found: list[tuple[str, float]] = []
        for source in sources:
            wait = self._waits.pop(source)
            if wait.told and any(handle is wait.handle for _, handle in running):
                logger.info("waits no more: source=%s seconds=%.0f", source, now - wait.since)
                found.append((source, now - wait.since))
        if len(found) == 1:
            self._say(f"{found[0][0]} has its place, after {found[0][1]:.0f} s")
        elif found:
            names = ", ".join(source for source, _ in found)
            self._say(f"{names} have their places, after {max(seconds for _, seconds in found):.0f} s")
