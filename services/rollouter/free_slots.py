"""Which replicas have a free slot, kept up to date, so that a request finds its replica without a look at a thousand of them.

places     1 2 3 4 5 6 …            a replica's place, in the order in which they came
free         2   4 5                places of those with a free slot: request number m begins to look at the (m modulo 3)rd of these
by load    0.25: 4   0.5: 2 5       and gets the first of the least loaded ones from there on, going round
"""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeSlots:
    """`file` tells what is so; the rest asks."""

    def __init__(self) -> None:
        self.count = 0
        """Free slots of all of them."""
        self._places: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._last_place = 0
        self._free: list[int] = []
        self._by_load: dict[float, list[int]] = {}
        self._filed: dict[int, tuple[float, int]] = {}
        """Place -> (load, free slots) of those with a free slot."""

    def add(self, name: str) -> int:
        """The place of a replica: the one that it has, else a new one behind all others."""
        if name not in self._places:
            self._last_place += 1
            self._places[name] = self._last_place
            self._names[self._last_place] = name
        return self._places[name]

    def remove(self, name: str) -> None:
        """It is gone; if it comes again, it comes behind all others."""
        place = self._places.pop(name, None)
        if place is not None:
            self._take_out(place)
            del self._names[place]

    def place(self, name: str) -> int:
        """Its place, by which replicas are in order."""
        return self._places[name]

    def file(self, name: str, requests: int, slots: int) -> None:
        """It has so many requests, and slots that may be used now."""
        place = self._places[name]
        self._take_out(place)
        if requests < slots:
            load = requests / slots
            self._filed[place] = (load, slots - requests)
            self.count += slots - requests
            insort(self._free, place)
            insort(self._by_load.setdefault(load, []), place)

    def _take_out(self, place: int) -> None:
        filed = self._filed.pop(place, None)
        if filed is None:
            return
        load, free = filed
        self.count -= free
        del self._free[bisect_left(self._free, place)]
        same = self._by_load[load]
        del same[bisect_left(same, place)]
        if not same:
            del self._by_load[load]

    def has(self, name: str) -> bool:
        """It has a free slot."""
        return self._places.get(name) in self._filed

    def choose(self, number: int, avoid: str = "") -> str | None:
        """The replica for request `number`; `avoid`: not this one, if there is another. None: there is no free slot."""
        unwanted = self._places.get(avoid, 0)
        if unwanted in self._filed and len(self._free) > 1:
            return self._choose_but(number, unwanted)
        if not self._free:
            return None
        first = self._free[number % len(self._free)]
        least = self._by_load[min(self._by_load)]
        found = bisect_left(least, first)
        return self._names[least[found if found < len(least) else 0]]

    def _choose_but(self, number: int, unwanted: int) -> str:
        """Seldom needed, so it may look at all."""
        free = [place for place in self._free if place != unwanted]
        start = number % len(free)
        return self._names[min(free[start:] + free[:start], key=lambda place: self._filed[place][0])]
