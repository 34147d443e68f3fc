"""Writes a Perfetto trace packet by packet: tracks, slices, instants, counters, flows.

Field numbers are those of perfetto/protos/perfetto/trace/trace_packet.proto and the files that it names. Names that come again and again
are interned: sent once with a number, then the number only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

from replay.trace.protobuf import block, double, fixed64, number, text

# Trace, TracePacket
PACKET, CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED_DATA, SEQUENCE_FLAGS, TRACK_DESCRIPTOR = 1, 6, 8, 10, 11, 12, 13, 60
STATE_CLEARED, NEEDS_STATE = 1, 2
# TrackDescriptor
UUID, NAME, PARENT, COUNTER, CHILD_ORDER, RANK, MERGE = 1, 2, 5, 8, 11, 12, 15
EXPLICIT, BY_NAME = 3, 1
# TrackEvent
ANNOTATION, TYPE, NAME_IID, TRACK, EVENT_NAME, COUNTER_VALUE, FLOW, TERMINATING_FLOW = 4, 9, 10, 11, 23, 30, 47, 48
SLICE_BEGIN, SLICE_END, INSTANT, COUNT = 1, 2, 3, 4
# DebugAnnotation, InternedData
ANNOTATION_IID, BOOL, INT, DOUBLE, STRING = 1, 2, 4, 5, 6
EVENT_NAMES, ANNOTATION_NAMES = 2, 3
# CounterDescriptor, ClockSnapshot
UNIT_NAME = 6
CLOCKS, CLOCK_ID, CLOCK_TIME = 1, 1, 2
REALTIME, BOOTTIME = 1, 6

ONE_SEQUENCE = 1
MOST_NAMES = 4096
"""Names of events that are interned; others, such as those of requests, are written out."""
LONGEST = 256
"""Characters of a value."""

Value = str | int | float | bool


class TraceWriter:
    """Writes to an open file. Times are nanoseconds, from 0 on; packets of one track come in their order."""

    def __init__(self, file: BinaryIO, began_at: int) -> None:
        """`began_at`: the time of day at time 0, in nanoseconds since 1970."""
        self._file = file
        self._tracks = 0
        self._names: dict[str, int] = {}
        self._annotations: dict[str, int] = {}
        self._news = b""
        """Names that the next packet has to tell."""
        clocks = b"".join(
            block(CLOCKS, number(CLOCK_ID, clock) + number(CLOCK_TIME, time)) for clock, time in ((BOOTTIME, 0), (REALTIME, began_at))
        )
        self._put(block(CLOCK_SNAPSHOT, clocks), STATE_CLEARED)

    def track(self, name: str, parent: int | None = None, rank: int = 0) -> int:
        """A new track, below `parent`; of those beside each other the lower rank is above. Tracks of one name are shown as one."""
        return self._track(name, parent, rank, b"")

    def counter(self, name: str, unit: str, parent: int, rank: int = 0) -> int:
        """A new track for a quantity."""
        return self._track(name, parent, rank, block(COUNTER, text(UNIT_NAME, unit)))

    def _track(self, name: str, parent: int | None, rank: int, kind: bytes) -> int:
        self._tracks += 1
        above = b"" if parent is None else number(PARENT, parent)
        order = number(CHILD_ORDER, EXPLICIT) + number(RANK, rank) + number(MERGE, BY_NAME)
        self._put(block(TRACK_DESCRIPTOR, number(UUID, self._tracks) + text(NAME, name) + above + kind + order))
        return self._tracks

    def begin(self, track: int, time: int, name: str, values: Mapping[str, Value], ended_flows: Iterable[int] = ()) -> None:
        """A slice begins; flows that were begun elsewhere end at it."""
        self._event(time, SLICE_BEGIN, track, self._name(name), values, (), ended_flows)

    def end(self, track: int, time: int) -> None:
        """The innermost slice of the track ends."""
        self._event(time, SLICE_END, track, b"", {}, (), ())

    def instant(
        self, track: int, time: int, name: str, values: Mapping[str, Value], flows: Sequence[int], ended_flows: Iterable[int]
    ) -> None:
        """Something happens; flows begin and end at it."""
        self._event(time, INSTANT, track, self._name(name), values, flows, ended_flows)

    def count(self, track: int, time: int, value: int) -> None:
        """A quantity has this value from now on."""
        self._put(number(TIMESTAMP, time) + block(TRACK_EVENT, number(TYPE, COUNT) + number(TRACK, track) + number(COUNTER_VALUE, value)))

    def _event(
        self, time: int, kind: int, track: int, name: bytes, values: Mapping[str, Value], flows: Iterable[int], ended_flows: Iterable[int]
    ) -> None:
        parts = [number(TYPE, kind), number(TRACK, track), name]
        parts += [fixed64(FLOW, flow) for flow in flows]
        parts += [fixed64(TERMINATING_FLOW, flow) for flow in ended_flows]
        parts += [block(ANNOTATION, self._annotation(name, value)) for name, value in values.items()]
        self._put(number(TIMESTAMP, time) + block(TRACK_EVENT, b"".join(parts)))

    def _annotation(self, name: str, value: Value) -> bytes:
        told = number(ANNOTATION_IID, self._intern(self._annotations, ANNOTATION_NAMES, name))
        match value:
            case bool():
                return told + number(BOOL, value)
            case int():
                return told + number(INT, value)
            case float():
                return told + double(DOUBLE, value)
            case _:
                return told + text(STRING, value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…")

    def _name(self, name: str) -> bytes:
        if name in self._names or len(self._names) < MOST_NAMES:
            return number(NAME_IID, self._intern(self._names, EVENT_NAMES, name))
        return text(EVENT_NAME, name)

    def _intern(self, known: dict[str, int], field: int, name: str) -> int:
        found = known.get(name)
        if found is None:
            found = known[name] = len(known) + 1
            self._news += block(field, number(1, found) + text(2, name))
        return found

    def _put(self, packet: bytes, flag: int = NEEDS_STATE) -> None:
        news, self._news = self._news, b""
        told = block(INTERNED_DATA, news) if news else b""
        self._file.write(block(PACKET, packet + told + number(SEQUENCE_FLAGS, flag) + number(SEQUENCE, ONE_SEQUENCE)))
