"""The Perfetto trace, read back with Perfetto's own message definitions: slices nest, flows go from cause to effect, counters count."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Message
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent
from typer.testing import CliRunner

from bus.entry import Entry
from bus.events import GenerationRequested, StepDone, SwitchStarted
from replay.cli import app
from replay.trace.protobuf import varint
from replay.trace.trace import Effects, draw_trace
from services.monitor.summary import summarise
from tests.cases.runs import of_kind, run_plan, small_plan
from tests.replay.recordings import save, simulated


@dataclass
class Slice:
    """One slice, instants among them."""

    track: str
    name: str
    begin: int
    end: int | None = None
    depth: int = 0
    values: dict[str, object] = field(default_factory=dict)
    flows: list[int] = field(default_factory=list)
    ended_flows: list[int] = field(default_factory=list)


class Read:
    """A trace as its viewer takes it in: packets in the order of the file, then sorted by time, those of one time as in the file."""

    def __init__(self, data: bytes) -> None:
        trace = Message()
        trace.ParseFromString(data)
        self.tracks: dict[int, TrackDescriptor] = {}
        self.slices: list[Slice] = []
        self.counts: dict[str, list[tuple[int, int]]] = {}
        self._names: dict[int, str] = {}
        self._annotations: dict[int, str] = {}
        self._open: dict[int, list[Slice]] = {}
        timed: list[tuple[int, TracePacket, str, dict[str, object]]] = []
        for packet in trace.packet:
            self._take_names(packet)
            assert not packet.FindInitializationErrors()
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in self.tracks
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            elif packet.HasField("track_event"):
                timed.append((packet.timestamp, packet, self._name(packet.track_event), self._values(packet.track_event)))
        assert trace.packet[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for time, packet, name, values in sorted(timed, key=lambda item: item[0]):
            self._take(time, packet.track_event, name, values)
        self.still_open = [each for stack in self._open.values() for each in stack]

    def _take_names(self, packet: TracePacket) -> None:
        for interned in packet.interned_data.event_names:
            assert interned.iid not in self._names
            self._names[interned.iid] = interned.name
        for annotation in packet.interned_data.debug_annotation_names:
            self._annotations[annotation.iid] = annotation.name

    def _name(self, event: TrackEvent) -> str:
        return self._names[event.name_iid] if event.name_iid else event.name

    def _values(self, event: TrackEvent) -> dict[str, object]:
        return {self._annotations[each.name_iid]: getattr(each, str(each.WhichOneof("value"))) for each in event.debug_annotations}

    def _take(self, time: int, event: TrackEvent, name: str, values: dict[str, object]) -> None:
        track = self.path(event.track_uuid)
        stack = self._open.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_COUNTER:
            self.counts.setdefault(track, []).append((time, event.counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            assert stack, f"a slice ends on {track} and none was begun"
            stack.pop().end = time
        else:
            assert name
            found = Slice(track, name, time, None, len(stack), values, list(event.flow_ids), list(event.terminating_flow_ids))
            self.slices.append(found)
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                stack.append(found)
            else:
                found.end = time

    def path(self, uuid: int) -> str:
        """`replica s0/requests`"""
        track = self.tracks[uuid]
        return f"{self.path(track.parent_uuid)}/{track.name}" if track.parent_uuid else track.name

    def on(self, track: str) -> list[Slice]:
        return [each for each in self.slices if each.track == track]

    def log(self) -> Iterator[Slice]:
        """The entries."""
        return (each for each in self.slices if each.track.endswith("/log"))


def drawn(entries: Sequence[Entry]) -> Read:
    effects, file = Effects(), io.BytesIO()
    for entry in entries:
        effects.note(entry.position, entry.cause)
    assert draw_trace(entries, effects, file) == len(entries)
    return Read(file.getvalue())


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_slices_nest_and_flows_lead_from_cause_to_effect_in_any_run(seed: int) -> None:
    entries = simulated(seed).store.entries
    trace = drawn(entries)
    entries_drawn = list(trace.log())
    assert [each.values["log.position"] for each in entries_drawn] == [entry.position for entry in entries], "in the order of the log"
    assert all(each.end is None or each.end >= each.begin for each in trace.slices)
    begun = {flow: each for each in trace.slices for flow in each.flows}
    ended = {flow: each for each in trace.slices for flow in each.ended_flows}
    causes = {entry.position: entry.cause for entry in entries if entry.cause}
    between = {flow: each for flow, each in ended.items() if flow in causes}
    assert {flow: begun[flow].values["log.position"] for flow in between} == causes
    assert all(each.values["log.position"] == flow for flow, each in between.items())
    assert ended.keys() <= begun.keys()
    assert all(trace.slices.index(begun[flow]) < trace.slices.index(ended[flow]) for flow in list(ended)[::50])


def test_requests_steps_swings_and_devices_are_slices() -> None:
    entries = run_plan(small_plan())
    trace, summary = drawn(entries), summarise(entries)
    requests = [each for each in trace.slices if each.track.endswith("/requests")]
    assert len(requests) == len(of_kind(entries, GenerationRequested))
    assert {each.track for each in requests} == {"replica s0/requests", "replica h0/requests"}
    assert [each.name for each in trace.on("trainer/steps")] == [f"step {event.step}" for event in of_kind(entries, StepDone)]
    swings = trace.on("controller/swings")
    outer = [each for each in swings if each.depth == 0]
    assert len(outer) == len(of_kind(entries, SwitchStarted))
    assert {each.name for each in swings if each.depth == 1} >= {"yield", "wake", "open", "cut", "reload"}
    for device in summary["devices"]:  # type: ignore[attr-defined]
        lane = trace.on(f"devices/{device['name']} ({', '.join(device['holders'])})")
        seconds = {name: sum((each.end or 0) - each.begin for each in lane if each.name == name) / 1e9 for name in device["seconds"]}
        assert seconds == pytest.approx(device["seconds"], abs=1e-6)


def test_a_request_slice_is_reached_by_a_flow_from_the_entry_that_asked_for_it() -> None:
    trace = drawn(run_plan(small_plan()))
    asked = {flow: each for each in trace.on("rollouter/log") if each.name == "GenerationRequested" for flow in each.flows}
    for request in (each for each in trace.slices if each.track.endswith("/requests")):
        (flow,) = request.ended_flows
        assert asked[flow].values["request"] == request.name


def test_counters_follow_the_books() -> None:
    entries = run_plan(small_plan())
    trace, summary = drawn(entries), summarise(entries)
    assert trace.counts["samples/version"][-1][1] == summary["version"]
    assert trace.counts["samples/ready"][-1][1] == summary["samples_ready_at_end"]
    assert max(value for _, value in trace.counts["samples/devices go back at"]) > 0


def test_what_goes_on_when_the_log_ends_stays_open() -> None:
    entries = run_plan(small_plan())
    asked = next(entry.position for entry in entries if isinstance(entry.event, GenerationRequested))
    trace = drawn(entries[:asked])
    assert any(each.track.endswith("/requests") for each in trace.still_open)
    assert not [each for each in drawn(entries).still_open if each.track.startswith("devices")]


def test_clocks_of_several_hosts_do_not_change_the_order_of_the_log() -> None:
    early = [entry._replace(at=entry.at - 10**12) if entry.source == "trainer" else entry for entry in run_plan(small_plan())]
    trace = drawn(early)
    assert [each.values["log.position"] for each in trace.log()] == [entry.position for entry in early]


def test_numbers_are_written_as_protobuf_has_them() -> None:
    assert [varint(value) for value in (0, 1, 127, 128, 300)] == [b"\x00", b"\x01", b"\x7f", b"\x80\x01", b"\xac\x02"]
    assert varint(-1) == b"\xff" * 9 + b"\x01"


def test_the_command_writes_a_trace(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", simulated(1).store)
    out = tmp_path / "x.pftrace"
    result = CliRunner().invoke(app, ["trace", str(folder), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "entries" in result.output
    assert Read(out.read_bytes()).slices
    result = CliRunner().invoke(app, ["trace", str(folder), "-o", str(tmp_path / "no" / "x.pftrace")])
    assert result.exit_code == 2
    assert "cannot be written" in result.output
