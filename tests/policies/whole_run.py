"""The regimes with the real rollouter, too: every answer is requested, aborted, moved and scored. The model is held against this.

RollouterCore, TrainerCore, ControllerCore, PolicyCore in virtual time ─▶ requests ─▶ an engine that counts seconds
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from benchmarks.queueing.driven import BLOB, opening
from benchmarks.queueing.regime import Regime
from bus.core import Core, Request
from bus.entry import Entry
from bus.events import (
    AbortRequested,
    DevicesReloaded,
    DevicesYielded,
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaAsleep,
    ReplicaAwake,
    RunEnded,
    SampleReady,
    SleepRequested,
    StepDone,
    WakeRequested,
    WeightsApplied,
    WeightsPublished,
    WeightUpdateRequested,
)
from bus.host import decide_all
from policies.protocol import Policy
from services.controller.core import ControllerCore
from services.policy.core import PolicyCore
from services.rollouter.core import RollouterCore, Score
from services.trainer.core import Publish, Reload, Train, TrainerCore, Yield
from services.trainer.waiting import WaitingClock


@dataclass
class Running:
    """An answer that is generated."""

    request: GenerationRequested
    ready_at: float


class WholeRun:
    """`seconds` after `run()`: from boundary 0 to the end."""

    def __init__(self, regime: Regime, lengths: Sequence[float], policy: Policy) -> None:
        self.seconds = 0.0
        self._regime = regime
        self._trainer, self._rollouter = TrainerCore(), RollouterCore()
        self._cores: tuple[Core, ...] = (self._rollouter, self._trainer, ControllerCore(), PolicyCore(policy))
        self._queue: deque[Entry] = deque()
        self._position = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_number = 0
        self._taken: dict[str, None] = {}
        self._left = dict(enumerate(lengths))
        """Sample -> seconds to go, of those that do not run."""
        self._left_replica: dict[int, str] = {}
        """Sample that was aborted -> where it can go on at once; empty: nowhere."""
        self._running: dict[int, Running] = {}
        self._waiting = WaitingClock(lambda: self.seconds)
        self._ended = False
        for source, event in opening(regime, policy):
            self._say(source, event)

    def _say(self, source: str, event: Event, derived: bool = False, cause: int = 0) -> None:
        self._position += 1
        self._queue.append(Entry(self._position, source, 1, derived, cause, round(self.seconds * 1e9), "", event))

    def run(self) -> float:
        while True:
            while self._queue:
                self._take(self._queue.popleft())
            self._waiting.look(self._trainer.is_waiting)
            for request in (*self._trainer.outstanding(), *self._rollouter.outstanding()):
                if request.key not in self._taken:
                    self._taken[request.key] = None
                    self._perform(request)
            if self._ended:
                return self.seconds
            if not self._queue:
                self._pass_time()

    def _take(self, entry: Entry) -> None:
        for core in self._cores:
            if not (entry.derived and entry.source == core.source):
                core.apply(entry)
            for event in decide_all(core, entry.position):
                self._say(core.source, event, derived=True, cause=entry.position)
        self._obey(entry.event)

    def _pass_time(self) -> None:
        sample = min(self._running, key=lambda sample: self._running[sample].ready_at, default=None)
        if sample is not None and (not self._timers or self._running[sample].ready_at <= self._timers[0][0]):
            finished = self._running.pop(sample)
            self.seconds = finished.ready_at
            self._finish(finished.request, "stop")
        else:
            self.seconds, _, action = heappop(self._timers)
            action()

    def _in(self, seconds: float, source: str, event: Event) -> None:
        self._timer_number += 1
        heappush(self._timers, (self.seconds + seconds, self._timer_number, lambda: self._say(source, event)))

    # --- replicas ----------------------------------------------------------------------------------------------------------------

    def _finish(self, request: GenerationRequested, outcome: str) -> None:
        finished = {"request": request.request, "attempt": request.attempt, "replica": request.replica, "outcome": outcome, "num_tokens": 0}
        self._say(f"replica:{request.replica}", GenerationFinished.model_validate(finished))

    def _abort(self, replica: str, forgets: bool) -> None:
        for sample, running in list(self._running.items()):
            if running.request.replica == replica:
                del self._running[sample]
                self._left[sample] = running.ready_at - self.seconds
                self._left_replica[sample] = "" if forgets else replica
                self._finish(running.request, "aborted")

    def _obey(self, event: Event) -> None:
        match event:
            case GenerationRequested(sample=sample):
                left = self._left_replica.pop(sample, event.replica)
                costs_s = 0.0 if left == event.replica else self._regime.move_seconds
                self._running[sample] = Running(event, self.seconds + self._left.pop(sample) + costs_s)
            case AbortRequested(replica=replica):
                self._abort(replica, forgets=True)
            case WeightUpdateRequested(replica=replica, version=version):
                self._abort(replica, forgets=False)
                self._say(f"replica:{replica}", WeightsApplied(replica=replica, version=version, revision=0, seconds=0.0))
            case WakeRequested(replica=replica, swing=swing, version=version):
                awake = ReplicaAwake(replica=replica, swing=swing, version=version, revision=0, seconds=1.0)
                self._in(self._regime.activate_seconds, f"replica:{replica}", awake)
            case SleepRequested(replica=replica, swing=swing):
                asleep = ReplicaAsleep(replica=replica, swing=swing, seconds=1.0)
                self._in(self._regime.deactivate_seconds, f"replica:{replica}", asleep)
            case RunEnded():
                self._ended = True
            case _:
                pass

    # --- trainer and rollouter ---------------------------------------------------------------------------------------------------

    def _perform(self, request: Request) -> None:
        match request:
            case Score(sample=sample):
                ready = SampleReady(sample=sample, num_tokens=1, oldest_version=0, newest_version=0, mean_reward=0.0, blob=BLOB)
                self._say("rollouter", ready)
            case Train(batch=batch, version=version, is_boundary=is_boundary):
                done = StepDone(
                    step=batch.step, version=version, is_boundary=is_boundary, num_samples=len(batch.samples),
                    seconds={"wait": self._waiting.take(), "train": self._regime.train_step_s}, metrics={},
                )  # fmt: skip
                self._in(self._regime.train_step_s, "trainer", done)
            case Publish(version=version):
                self._publish(version, self._regime.sync_seconds if version else 0.0)
            case Yield(swing=swing):
                self._say("trainer", DevicesYielded(swing=swing, seconds=0.0))
            case Reload(swing=swing):
                self._say("trainer", DevicesReloaded(swing=swing, seconds=0.0))
            case _:
                pass

    def _publish(self, version: int, seconds: float) -> None:
        for running in self._running.values():
            running.ready_at += seconds
        self._in(seconds, "trainer", WeightsPublished(
            version=version, revision=0, transport="file", uri="w", digest="d", num_bytes=1, seconds=seconds,
        ))  # fmt: skip
