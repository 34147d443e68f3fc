"""One time line of a whole run, though there are several clocks: what all devices' seconds are measured on.

    a clock          that of a host, as ServiceStarted names it; of a single incarnation where it names none
    its first entry  hangs it up at the newest time so far                                        (the log's order)
    each entry       that time + what passed on this clock since then
    with a cause     cannot be before it: if it seems so, the clock was hung up too early, and is moved
    the run's time   the newest of all; each interval between two entries is counted once, for every device

Differences are taken within one clock only, so it does not matter how clocks are set. Each correction is one that must be right, so no
clock runs ahead of the first; who reacts to whom keeps them together up to the time that it takes to react. Observers, to whom nobody
reacts, and policies, which do not name their host, have no say.
"""

from __future__ import annotations

from bus.entry import Entry, role_of
from bus.events import ServiceStarted

NANOSECONDS = 1e9
SILENT = ("monitor", "archiver", "policy")
REMEMBERED = 4096
"""Newest entries whose time is known, for those that they are the cause of."""


def has_time(entry: Entry) -> bool:
    """Whether the clock moves with it. Not with epoch 0: operators, several at a time, on any machine."""
    return entry.epoch != 0 and role_of(entry.source) not in SILENT


class RunClock:
    """Feed it every entry once, in order."""

    def __init__(self) -> None:
        self.now = 0
        """Nanoseconds since the first entry of a service."""
        self._clock_of: dict[str, str] = {}
        """Source -> the clock that its newest incarnation reads."""
        self._offsets: dict[str, int] = {}
        """Clock -> run's time minus its own."""
        self._times: list[tuple[int, int]] = [(0, 0)] * REMEMBERED
        """(position, its time) at position modulo length."""

    def apply(self, entry: Entry) -> int:
        """Takes in one entry; returns the run's time at it."""
        if isinstance(entry.event, ServiceStarted):
            self._clock_of[entry.source] = entry.event.host or f"{entry.source}/{entry.epoch}"
        if not has_time(entry):
            return self.now
        clock = self._clock_of.setdefault(entry.source, f"{entry.source}/{entry.epoch}")
        time = max(entry.at + self._offsets.setdefault(clock, self.now - entry.at), self._time_of(entry.cause))
        self._offsets[clock] = time - entry.at
        self._times[entry.position % REMEMBERED] = (entry.position, time)
        self.now = max(self.now, time)
        return self.now

    def _time_of(self, position: int) -> int:
        known, time = self._times[position % REMEMBERED]
        return time if position and known == position else 0
