"""Where things are drawn: a group of tracks for each service, one for the devices, one for what is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replay.trace.writer import TraceWriter, Value

SLICE_FLOWS = 1 << 40
"""Flows that end at slices are numbered from here on; those between entries have the position of the effect."""


@dataclass
class Pool:
    """Slices that may overlap: as many tracks of one name as go on at a time. One that has not ended at the end stays open."""

    writer: TraceWriter
    name: str
    parent: int
    rank: int
    tracks: list[int] = field(default_factory=list)
    free_from: list[int] = field(default_factory=list)
    """When the last slice of each track ended."""
    open: dict[object, int] = field(default_factory=dict)
    """Key -> index of the track on which it goes on."""

    def begin(self, key: object, time: int, name: str, values: Mapping[str, Value], flow: int | None = None) -> None:
        """Begins a slice; one of the same key that goes on already is left as it is."""
        if key in self.open:
            return
        taken = set(self.open.values())
        index = next((index for index in range(len(self.tracks)) if index not in taken and self.free_from[index] <= time), len(self.tracks))
        if index == len(self.tracks):
            self.tracks.append(self.writer.track(self.name, self.parent, self.rank))
            self.free_from.append(0)
        self.open[key] = index
        self.writer.begin(self.tracks[index], time, name, values, () if flow is None else (flow,))

    def end(self, key: object, time: int) -> None:
        """Ends it, if it goes on."""
        index = self.open.pop(key, None)
        if index is not None:
            self.writer.end(self.tracks[index], time)
            self.free_from[index] = time

    def whole(self, time: int, seconds: float, name: str, values: Mapping[str, Value]) -> None:
        """A slice that ends now and was so long."""
        began = max(0, time - round(seconds * 1e9))
        self.begin(name, began, name, values)
        self.end(name, time)

    def end_all(self, time: int) -> None:
        """Ends all that go on."""
        for key in list(self.open):
            self.end(key, time)


class Tracks:
    """Finds and makes groups and pools."""

    def __init__(self, writer: TraceWriter) -> None:
        self.writer = writer
        self._groups: dict[str, int] = {}
        self._pools: dict[tuple[str, str], Pool] = {}

    def group(self, name: str) -> int:
        """The group of a source, or one of the other groups."""
        if name not in self._groups:
            self._groups[name] = self.writer.track(name.replace(":", " "))
        return self._groups[name]

    def pool(self, group: str, name: str, rank: int = 0) -> Pool:
        """The pool of that name in a group."""
        if (group, name) not in self._pools:
            self._pools[group, name] = Pool(self.writer, name, self.group(group), rank)
        return self._pools[group, name]

    def known(self, group: str, name: str) -> Pool | None:
        """The pool, if anything was ever drawn in it."""
        return self._pools.get((group, name))
