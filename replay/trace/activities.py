"""What goes on for a while, as slices: requests, samples, steps, swings and their phases, devices, engines, incarnations."""

from __future__ import annotations

from bus.entry import Entry
from bus.events import (
    BatchFormed,
    BoundaryOpened,
    CheckpointSaved,
    DevicesReloaded,
    DevicesYielded,
    EvalDone,
    EvalRequested,
    GenerationRequested,
    PolicyAttached,
    PolicyDetached,
    ReplicaAdded,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaFailed,
    ReplicaLost,
    SampleDropped,
    SampleReady,
    SampleStarted,
    ServiceLost,
    ServiceStarted,
    ServiceStopped,
    SleepRequested,
    StepDone,
    SwitchStarted,
    TrainGranted,
    WakeRequested,
    WeightsApplied,
    WeightsPublished,
    WeightUpdateRequested,
)
from bus.requests import Requests
from bus.sources import REPLICA_PREFIX
from replay.trace.tracks import SLICE_FLOWS, Pool, Tracks
from replay.trace.writer import Value
from services.monitor.classes import Class
from services.monitor.summary import Summary

ENGINE = "engine"
REQUESTS = "requests"
ALIVE = "incarnation"


class Activities:
    """Feed it every entry, after `summary` took it in and the entry itself was drawn."""

    def __init__(self, tracks: Tracks, summary: Summary) -> None:
        self._tracks = tracks
        self._summary = summary
        self._requests = Requests()
        self._flows = SLICE_FLOWS
        self._doing: dict[str, Class | None] = {}
        self._phase: tuple[int, str] | None = None

    def begun_by(self, entry: Entry) -> int | None:
        """The number of a flow from this entry to the slice that it begins, if it is a request."""
        if not isinstance(entry.event, GenerationRequested | SampleStarted | BatchFormed | SwitchStarted | WakeRequested | SleepRequested):
            return None
        self._flows += 1
        return self._flows

    def apply(self, entry: Entry, time: int, flow: int | None) -> None:
        """Takes in one entry."""
        self._draw_requests(entry, time, flow)
        self._draw_swing(entry, time, flow)
        self._draw_devices(time)
        match entry.event:
            case SampleStarted() | SampleReady() | SampleDropped():
                self._draw_sample(entry.event, time, flow)
            case ServiceStarted() | PolicyAttached() | ServiceStopped() | PolicyDetached() | ServiceLost() | ReplicaLost():
                self._draw_incarnation(entry, time)
            case BatchFormed() | StepDone() | BoundaryOpened() | TrainGranted():
                self._draw_step(entry, time, flow)
            case WeightsPublished() | CheckpointSaved() | DevicesYielded() | DevicesReloaded():
                self._draw_work(entry, time)
            case _:
                self._draw_engine(entry, time, flow)

    # --- samples and requests ----------------------------------------------------------------------------------------------------

    def _draw_requests(self, entry: Entry, time: int, flow: int | None) -> None:
        event = entry.event
        outcomes = self._requests.apply(entry)
        if isinstance(event, GenerationRequested) and not outcomes:
            values = {"attempt": event.attempt, "sample": event.sample, "prefix_tokens": event.prefix_tokens, "swing": event.swing}
            self._pool(event.replica, REQUESTS).begin((event.request, event.attempt), time, event.request, values, flow)
        for request, _ in outcomes:
            self._pool(request.replica, REQUESTS).end((request.request, request.attempt), time)

    def _draw_sample(self, event: SampleStarted | SampleReady | SampleDropped, time: int, flow: int | None) -> None:
        pool = self._tracks.pool("rollouter", "samples", 1)
        if isinstance(event, SampleStarted):
            pool.begin(event.sample, time, f"sample {event.sample}", {"version": event.version}, flow)
        else:
            pool.end(event.sample, time)

    def _pool(self, replica: str, name: str) -> Pool:
        return self._tracks.pool(REPLICA_PREFIX + replica, name, {ENGINE: 1, REQUESTS: 2}[name])

    # --- the trainer -------------------------------------------------------------------------------------------------------------

    def _draw_step(self, entry: Entry, time: int, flow: int | None) -> None:
        steps = self._tracks.pool("trainer", "steps", 1)
        boundaries = self._tracks.pool("controller", "boundaries", 2)
        match entry.event:
            case BatchFormed() as event:
                steps.begin(event.step, time, f"step {event.step}", {"samples": len(event.samples)}, flow)
            case StepDone() as event:
                steps.end(event.step, time)
                if event.is_boundary and not self._summary.books.last_step_done:
                    boundaries.begin("boundary", time, f"boundary {event.version + 1}", {})
            case BoundaryOpened() as event:
                boundaries.begin("boundary", time, f"boundary {event.version}", {})
            case _:
                boundaries.end("boundary", time)

    def _draw_work(self, entry: Entry, time: int) -> None:
        pool = self._tracks.pool("trainer", "weights and devices", 2)
        match entry.event:
            case WeightsPublished() as event:
                pool.whole(time, event.seconds, f"publish {event.version}", {"num_bytes": event.num_bytes})
            case CheckpointSaved() as event:
                pool.whole(time, event.seconds, f"checkpoint of step {event.step}", {"uri": event.uri})
            case DevicesYielded() as event:
                pool.whole(time, event.seconds, f"yield {event.swing}", {})
            case DevicesReloaded() as event:
                pool.whole(time, event.seconds, f"reload {event.swing}", {})
            case _:
                pass

    # --- swings, devices ---------------------------------------------------------------------------------------------------------

    def _draw_swing(self, entry: Entry, time: int, flow: int | None) -> None:
        """A slice a swing, and within it one a phase, on the same track."""
        running = self._summary.swings.running
        now = None if running is None else (running.swing, running.phase)
        if now == self._phase:
            return
        before, self._phase = self._phase, now
        pool = self._tracks.pool("controller", "swings", 1)
        track = pool.tracks[0] if pool.tracks else self._tracks.writer.track(pool.name, pool.parent, pool.rank)
        pool.tracks = [track]
        if before is not None:
            self._tracks.writer.end(track, time)
        if before is not None and (now is None or now[0] != before[0]):
            self._tracks.writer.end(track, time)
        if running is not None and now is not None and (before is None or now[0] != before[0]):
            name = f"{'lend' if running.target == 'rollout' else 'back'} {running.swing}"
            values: dict[str, Value] = {"reason": running.reason, "ready": running.ready_at_start}
            self._tracks.writer.begin(track, time, name, values, () if flow is None else (flow,))
            if isinstance(entry.event, SwitchStarted) and entry.event.answers is not None:
                self._tracks.pool("controller", "boundaries", 2).end("boundary", time)
        if now is not None:
            self._tracks.writer.begin(track, time, now[1], {})

    def _draw_devices(self, time: int) -> None:
        """Until the run has ended; then they do nothing."""
        for group in self._summary.devices.groups:
            doing = None if self._summary.ended is not None else group.doing
            if self._doing.get(group.name) == doing:
                continue
            pool = self._tracks.pool("devices", f"{group.name} ({', '.join(group.holders)})")
            pool.end_all(time)
            self._doing[group.name] = doing
            if doing is not None:
                pool.begin(group.name, time, doing, {})

    # --- processes ---------------------------------------------------------------------------------------------------------------

    def _draw_engine(self, entry: Entry, time: int, flow: int | None) -> None:
        match entry.event:
            case ReplicaAdded() as event:
                self._pool(event.replica, ENGINE).end("start", time)
            case WeightUpdateRequested() as event:
                self._pool(event.replica, ENGINE).begin(
                    "update", time, f"update to {event.version}", {"mode": event.mode, "uri": event.uri}
                )
            case WeightsApplied() as event:
                self._pool(event.replica, ENGINE).end("update", time)
            case WakeRequested() as event:
                self._pool(event.replica, ENGINE).begin("wake", time, f"wake with {event.version}", {"swing": event.swing}, flow)
            case ReplicaAwake() as event:
                self._pool(event.replica, ENGINE).end("wake", time)
            case SleepRequested() as event:
                self._pool(event.replica, ENGINE).begin("sleep", time, "go to sleep", {"swing": event.swing}, flow)
            case ReplicaAsleep() as event:
                self._pool(event.replica, ENGINE).end("sleep", time)
            case EvalRequested() as event:
                self._tracks.pool("rollouter", "evaluations", 2).begin("eval", time, f"version {event.version}", {"on": event.replica})
            case EvalDone() as event:
                self._tracks.pool("rollouter", "evaluations", 2).end("eval", time)
            case ReplicaFailed() as event:
                self._pool(event.replica, ENGINE).end_all(time)
            case _:
                pass

    def _draw_incarnation(self, entry: Entry, time: int) -> None:
        match entry.event:
            case ServiceStarted() | PolicyAttached() as event:
                self._end_incarnation(entry.source, time)
                pool = self._tracks.pool(entry.source, ALIVE, 3)
                pool.begin(ALIVE, time, f"epoch {entry.epoch}", {"code": event.code})
                if entry.source.startswith(REPLICA_PREFIX):
                    self._tracks.pool(entry.source, ENGINE, 1).begin("start", time, "start", {})
            case ServiceStopped() | PolicyDetached():
                self._end_incarnation(entry.source, time)
            case ServiceLost() as event:
                self._end_incarnation(event.service, time)
            case ReplicaLost() as event:
                self._end_incarnation(REPLICA_PREFIX + event.replica, time)
            case _:
                pass

    def _end_incarnation(self, source: str, time: int) -> None:
        for name in (ALIVE, ENGINE):
            pool = self._tracks.known(source, name)
            if pool is not None:
                pool.end_all(time)
