"""How long things took, told by the `at` of entries: differences are taken within one source and epoch only.

    entry e1 of the source ──── dt on its clock ────▶ its next entry e2 of the same incarnation: dt belongs to what was the case at e1

What happens between a source's last entry before a restart and its first one after it is in no class: nobody measured it.
"""

from __future__ import annotations

from bus.entry import Entry

NANOSECONDS = 1e9


class ClassClock:
    """Splits the time that passes on one source's clock into exclusive classes, one split for each lane."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.total_s = 0.0
        self.restarts = 0
        """How often a new incarnation went on: how many spans were not measured."""
        self._seconds: dict[str, dict[str, float]] = {}
        self._classes: dict[str, str] = {}
        self._last: tuple[int, int] | None = None
        """Epoch and time of the source's last entry."""

    def tick(self, entry: Entry, classes: dict[str, str]) -> None:
        """Takes in an entry of any source; `classes` is what each lane does after it (lane -> class)."""
        if entry.source != self.source:
            return
        if self._last is not None and self._last[0] == entry.epoch:
            self._pass(max(0, entry.at - self._last[1]) / NANOSECONDS)
        elif self._last is not None:
            self.restarts += 1
        self._last = (entry.epoch, entry.at)
        self._classes = dict(classes)

    def seconds(self, lane: str, name: str) -> float:
        """Seconds that a lane spent in a class."""
        return self._seconds.get(lane, {}).get(name, 0.0)

    def split(self, lane: str) -> dict[str, float]:
        """Class -> seconds of a lane; adds up to the time that the lane was there."""
        return dict(self._seconds.get(lane, {}))

    def lanes(self) -> list[str]:
        """Lanes that there have been."""
        return list(self._seconds)

    def _pass(self, seconds: float) -> None:
        self.total_s += seconds
        for lane, name in self._classes.items():
            classes = self._seconds.setdefault(lane, {})
            classes[name] = classes.get(name, 0.0) + seconds
