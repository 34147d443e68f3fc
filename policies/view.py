"""What every policy sees of a run: one fold of the log, so that a policy is a page.

    log ──▶ books (samples) + in flight (how far) + swings (devices, costs) + waits + boundary ──▶ ScheduleView ──▶ Policy.verdict

    boundary v:  StepDone(is_boundary) ──▶ open ──▶ decided by the first of SwitchRequested(answers=v), DeadlineMissed(verdict:v),
                 (v = 0: BoundaryOpened)            SwitchStarted(answers=v), TrainGranted(v), or by a SettingChanged: nobody is asked

A boundary's numbers are those of the entry that opened it: whoever answers it, and however late, answers the same question, and a shadow
that reads the answer at another place of the log than it was given comes to the same state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import fsum
from typing import Literal

from bus.books import Books
from bus.entry import Entry
from bus.events import (
    BoundaryOpened,
    DeadlineMissed,
    Event,
    GenerationFinished,
    GenerationRequested,
    RunEnded,
    SampleReady,
    SettingChanged,
    StepDone,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
    WaitSamples,
)
from bus.requests import ANSWERING
from policies.in_flight import InFlight
from policies.swings import NANOSECONDS, RECENT, Swings

RECENT_SAMPLES = 64
"""Ready samples over which the rate is taken."""

Moment = Literal["", "ready", "waits"]


@dataclass(frozen=True, slots=True)
class RunShape:
    """The run's fixed numbers, by the names of the settings."""

    required_samples: int
    """Samples of one step (R)."""
    trigger_parameter_sync_step: int
    """Steps of one cycle (K)."""
    staleness_threshold: float
    only_hybrid: bool
    """There are no standalone replicas."""

    @property
    def cycle_samples(self) -> int:
        """Samples of one cycle (S)."""
        return self.required_samples * self.trigger_parameter_sync_step

    @property
    def buffer_samples(self) -> float:
        """Samples that may be ahead of the cycle."""
        return self.cycle_samples * self.staleness_threshold

    def expected_samples(self, version: int) -> int:
        """Samples that boundary `version` expects to have become usable (E)."""
        return self.cycle_samples * max(1, version)


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary, with the books at the entry that opened it."""

    version: int
    """The version that is published at it."""
    generated: int
    """Samples that became usable since the run began (G)."""
    ready: int
    in_flight: int
    deactivation_s: float = 0.0
    """Seconds of the return in the cycle that it ends; 0: there was none, or it could not be measured."""


class ScheduleView:
    """Fold of the whole log, bounded in memory. Feed it every entry once, in order."""

    def __init__(self) -> None:
        self.books = Books()
        self.swings = Swings()
        self.in_flight = InFlight()
        self.moment: Moment = ""
        """What the newest entry said: a sample became ready, the trainer waits for samples, or something else."""
        self.boundary: Boundary | None = None
        """The newest boundary, open or decided."""
        self.is_open = False
        """The newest boundary waits for an answer."""
        self.boundaries_decided = 0
        self.wait_s: list[float] = []
        """Seconds that each finished step of this cycle waited for its batch, devices home."""
        self.wait_n: list[int] = []
        """Samples that each finished step of this cycle lacked when it asked."""
        self.train_s: deque[float] = deque(maxlen=RECENT)
        """Seconds of training of the newest steps."""
        self.step_s: deque[float] = deque(maxlen=RECENT)
        """The same with reading the samples: all of the newest steps but waiting for their batch."""
        self.ended = False
        self._asked = (0, 0)
        self._cycle_over = False
        self._ready_at: deque[tuple[str, int, int]] = deque(maxlen=RECENT_SAMPLES)

    @property
    def shape(self) -> RunShape:
        """The run's numbers; there from the first entry on."""
        plan = self.books.plan
        assert plan is not None
        return RunShape(
            plan.required_samples, plan.trigger_parameter_sync_step, self.books.staleness_threshold, only_hybrid=not plan.standalone
        )

    @property
    def asks_boundaries(self) -> bool:
        """Boundaries are put to the policy: dynamic scheduling is on and there is a replica to lend to."""
        plan = self.books.plan
        return plan is not None and plan.use_dynamic_resource_scheduling and bool(plan.hybrid)

    @property
    def ready_per_s(self) -> float:
        """Samples that become ready a second, over the newest ones that one incarnation of the rollouter reported; 0 while unknown."""
        if len(self._ready_at) < 2:
            return 0.0
        seconds = (self._ready_at[-1][2] - self._ready_at[0][2]) / NANOSECONDS
        return (len(self._ready_at) - 1) / seconds if seconds > 0 else 0.0

    @property
    def mean_train_s(self) -> float:
        """Seconds of training a step, mean of the newest ones; 0 while unknown."""
        return fsum(self.train_s) / len(self.train_s) if self.train_s else 0.0

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        if type(event) in ANSWERING:
            return
        if not isinstance(event, GenerationRequested | GenerationFinished):
            self.moment = ""
        if self._cycle_over and not self.is_open:
            self._begin_cycle()
        steps_done = self.books.steps_done
        was_ready = len(self.books.ready)
        self.books.apply(event)
        self.swings.apply(entry)
        self.in_flight.apply(entry)
        match event:
            case WaitSamples():
                self.moment = "waits"
                self._asked = (event.step, max(0, event.need - event.have))
            case StepDone():
                if self.books.steps_done > steps_done:
                    self._finish_step(event)
            case SampleReady():
                if len(self.books.ready) > was_ready:
                    self.moment = "ready"
                    self._time_ready(entry)
            case BoundaryOpened():
                if self.boundary is None:
                    self._open(event.version)
            case SettingChanged() if self.is_open and not self.asks_boundaries:
                self._close()
            case RunEnded():
                self.ended = True
            case _:
                if self.is_open and self.boundary is not None and decides(event, self.boundary.version):
                    self._close()

    def _begin_cycle(self) -> None:
        self._cycle_over = False
        self.wait_s = []
        self.wait_n = []
        self.swings.begin_cycle()

    def _finish_step(self, event: StepDone) -> None:
        step, lacking = self._asked
        self.wait_s.append(event.seconds.get("wait", 0.0))
        self.wait_n.append(lacking if step == event.step else 0)
        if "train" in event.seconds:
            self.train_s.append(event.seconds["train"])
            self.step_s.append(event.seconds["train"] + event.seconds.get("load", 0.0))
        if event.is_boundary:
            self._cycle_over = True
            if not self.books.last_step_done:
                self._open(event.version + 1)

    def _open(self, version: int) -> None:
        if self.asks_boundaries:
            returned_s = self.swings.this_cycle.deactivation_s
            self.boundary = Boundary(version, self.books.generated, len(self.books.ready), len(self.books.in_flight), returned_s)
            self.is_open = True

    def _close(self) -> None:
        self.is_open = False
        self.boundaries_decided += 1

    def _time_ready(self, entry: Entry) -> None:
        # Times of two incarnations are of two clocks.
        if self._ready_at and self._ready_at[-1][:2] != (entry.source, entry.epoch):
            self._ready_at.clear()
        self._ready_at.append((entry.source, entry.epoch, entry.at))


def decides(event: Event, version: int) -> bool:
    """The event ends the wait for an answer to the open boundary `version`."""
    match event:
        case SwitchRequested() | SwitchStarted():
            return event.answers == version
        case TrainGranted():
            return event.version == version
        case DeadlineMissed():
            return event.key == f"verdict:{version}"
        case _:
            return False
