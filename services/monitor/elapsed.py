"""How long ago an entry was written, for a live view: by its source's own clock up to that source's newest entry, by ours from there on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bus.entry import Entry
from services.monitor.run_clock import NANOSECONDS


@dataclass(frozen=True, slots=True)
class Moment:
    """When an entry was written, and when it was read here (seconds, monotonic)."""

    source: str
    epoch: int
    at: int
    read_s: float


class Elapsed:
    """Feed it every entry; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._newest: dict[str, Moment] = {}

    def apply(self, entry: Entry) -> Moment:
        """Takes in one entry; returns its moment."""
        moment = Moment(entry.source, entry.epoch, entry.at, self._clock())
        self._newest[entry.source] = moment
        return moment

    def since_s(self, moment: Moment) -> float:
        """Seconds since then. Right also for an entry that was read long after it was written."""
        newest = self._newest[moment.source]
        if newest.epoch != moment.epoch:
            return self._clock() - moment.read_s
        return max(0, newest.at - moment.at) / NANOSECONDS + self._clock() - newest.read_s


def clock_text(seconds: float) -> str:
    """`0:07`, `12:34`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
