"""Draws a log: every entry as an instant of its source, what goes on as slices, quantities as counters, flows from cause to effect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from bus.entry import Entry
from bus.events import Event
from policies.swings import Swings
from replay.trace.activities import Activities
from replay.trace.tracks import Tracks
from replay.trace.writer import TraceWriter, Value
from services.monitor.run_clock import RunClock
from services.monitor.summary import Summary

LOG = "log"


class Effects:
    """Which entries each entry led to; feed it every entry's position and cause before the trace is drawn."""

    def __init__(self) -> None:
        self._of: dict[int, list[int]] = {}

    def note(self, position: int, cause: int) -> None:
        """An entry and what led to it; 0: nothing did."""
        if cause:
            self._of.setdefault(cause, []).append(position)

    def of(self, position: int) -> list[int]:
        """Positions of its effects. What it led to before itself, as in a log that was tampered with, is none."""
        return [effect for effect in self._of.get(position, ()) if effect > position]


def draw_trace(entries: Iterable[Entry], effects: Effects, file: BinaryIO) -> int:
    """Writes the trace of a log; returns how many entries it has."""
    trace: Trace | None = None
    for entry in entries:
        if trace is None:
            trace = Trace(file, entry.at)
        trace.apply(entry, effects.of(entry.position))
    return 0 if trace is None else trace.entries


class Trace:
    """Fold of a whole log that writes as it goes."""

    def __init__(self, file: BinaryIO, began_at: int) -> None:
        self.entries = 0
        self._writer = TraceWriter(file, began_at)
        self._tracks = Tracks(self._writer)
        self._clock = RunClock()
        """One of its own: that of the summary stops with the run, and services say more after that."""
        self._summary = Summary()
        self._activities = Activities(self._tracks, self._summary)
        self._gauges = Gauges(self._tracks, self._summary)
        self._logs: dict[str, int] = {}

    def apply(self, entry: Entry, effects: list[int]) -> None:
        """Takes in one entry."""
        self.entries += 1
        self._summary.apply(entry)
        time = self._clock.apply(entry)
        flow = self._activities.begun_by(entry)
        ended = (entry.position,) if 0 < entry.cause < entry.position else ()
        flows = effects if flow is None else [*effects, flow]
        self._writer.instant(self._log(entry.source), time, entry.event.kind, _envelope(entry) | flat(entry.event), flows, ended)
        self._activities.apply(entry, time, flow)
        self._gauges.apply(entry, time)

    def _log(self, source: str) -> int:
        if source not in self._logs:
            self._logs[source] = self._writer.track(LOG, self._tracks.group(source))
        return self._logs[source]


class Gauges:
    """Quantities over time."""

    def __init__(self, tracks: Tracks, summary: Summary) -> None:
        self._tracks = tracks
        self._summary = summary
        self._swings = Swings()
        self._counters: dict[str, int] = {}
        self._values: dict[str, int] = {}

    def apply(self, entry: Entry, time: int) -> None:
        """Takes in one entry."""
        self._swings.apply(entry)
        books, lend = self._summary.books, self._swings.lend
        self._count("ready", "samples", len(books.ready), time)
        self._count("in flight", "samples", len(books.in_flight), time)
        self._count("devices go back at", "samples ready", 0 if lend is None else lend.give_back_at, time)
        self._count("version", "", max(0, books.version), time)

    def _count(self, name: str, unit: str, value: int, time: int) -> None:
        if self._values.get(name) == value:
            return
        if name not in self._counters:
            self._counters[name] = self._tracks.writer.counter(name, unit, self._tracks.group("samples"), len(self._counters))
        self._values[name] = value
        self._tracks.writer.count(self._counters[name], time, value)


def _envelope(entry: Entry) -> dict[str, Value]:
    return {
        "log.position": entry.position,
        "log.cause": entry.cause,
        "log.epoch": entry.epoch,
        "log.derived": entry.derived,
    }


def flat(event: Event) -> dict[str, Value]:
    """The fields of an event, those of inner ones with dots; lists as JSON."""
    found: dict[str, Value] = {}
    _flatten("", event.model_dump(mode="json"), found)
    return found


def _flatten(prefix: str, values: Mapping[str, object], found: dict[str, Value]) -> None:
    for name, value in values.items():
        match value:
            case None:
                pass
            case str() | int() | float():
                found[prefix + name] = value
            case dict():
                _flatten(f"{prefix}{name}.", value, found)
            case _:
                found[prefix + name] = json.dumps(value)
