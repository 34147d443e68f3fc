"""What happened when, folded from a log: for each device what it did, how many samples were ready, steps, swings, and what is notable.

It watches the same folds that summary.json and the live view are made of, so that lanes add up to the seconds which those tell.
Times are those of the run's one clock (`services.monitor.run_clock`), in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.entry import Entry
from bus.events import (
    DeadlineMissed,
    EvalDone,
    KillRequested,
    PolicyAttached,
    PolicyRefused,
    RedoDiverged,
    ReplicaFailed,
    ReplicaLost,
    RolloutPaused,
    RunEnded,
    SampleDropped,
    ServiceLost,
    Stalled,
    StepDone,
    SwitchDone,
    SwitchRejected,
    SwitchStarted,
    WeightsPublished,
)
from bus.requests import ANSWERING
from policies.swings import Swings
from replay.ledger import Ledger
from replay.report.series import Series
from services.monitor.classes import Class
from services.monitor.device_times import Group
from services.monitor.notes import note_of, swing_note
from services.monitor.summary import Summary
from services.monitor.training import Distribution

TROUBLE = (
    DeadlineMissed, KillRequested, PolicyRefused, RedoDiverged, ReplicaFailed, ReplicaLost, RolloutPaused, SampleDropped, ServiceLost,
    Stalled, SwitchRejected,
)  # fmt: skip
MOST_NOTES = 1000


@dataclass
class Lane:
    """Devices with the same holders, and what they did. `doing` is None while nobody holds them."""

    group: Group
    doing: Series[Class | None] = field(default_factory=Series)


@dataclass(frozen=True, slots=True)
class Step:
    """A training step at its end."""

    step: int
    time: int
    reward: float | None
    wait_s: float
    staleness: Distribution | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A version that was evaluated; `step`: steps done when it was."""

    version: int
    step: int
    time: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a line."""

    time: int
    position: int
    text: str
    is_trouble: bool


class Timeline:
    """Fold of a whole log; feed it every entry once, in order."""

    def __init__(self) -> None:
        self.summary = Summary()
        self.ledger = Ledger()
        self.lanes: list[Lane] = []
        self.ready: Series[int] = Series()
        self.in_flight: Series[int] = Series()
        self.give_back_at: Series[int | None] = Series()
        """Ready samples at which the lent devices go back; None: they are not lent, nor about to be."""
        self.steps: list[Step] = []
        self.swing_times: dict[int, tuple[int, int | None]] = {}
        """Swing -> when it began and ended."""
        self.policy_times: dict[int, int] = {}
        """Position at which another policy began to decide -> when."""
        self.publications: list[tuple[int, int]] = []
        """(time, version)"""
        self.evaluations: list[Evaluation] = []
        self.notes: list[Note] = []
        self.notes_left_out = 0
        self._swings = Swings()
        self._num_rewards = 0

    @property
    def opened(self) -> int:
        """When boundary 0 was opened; the newest time when it was not yet."""
        return self.end if self.summary.opened_at is None else self.summary.opened_at

    @property
    def end(self) -> int:
        """When the run ended, or its newest entry."""
        return self.summary.clock.now

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        self.ledger.apply(entry)
        over = self.summary.ended is not None
        self.summary.apply(entry)
        if over:
            return
        now = self.summary.clock.now
        self._look_at_devices(now)
        if type(entry.event) in ANSWERING:
            return  # nine of ten entries, and they change nothing else
        self._swings.apply(entry)
        self._look_at_books(now)
        match entry.event:
            case StepDone() as event if self.summary.training.newest is event:
                self._add_step(event, now)
            case SwitchStarted() as event:
                self.swing_times[event.swing] = (now, None)
            case SwitchDone() | SwitchRejected() as event if event.swing in self.swing_times:
                self.swing_times[event.swing] = (self.swing_times[event.swing][0], now)
            case PolicyAttached(mode="active") if (active := self.summary.policies.active) and active.position == entry.position:
                self.policy_times[entry.position] = now
            case WeightsPublished() as event:
                self.publications.append((now, event.version))
            case EvalDone() as event:
                self.evaluations.append(Evaluation(event.version, self.summary.books.steps_done, now, event.metrics))
            case _:
                pass
        self._note(entry, now)

    def _look_at_devices(self, now: int) -> None:
        for group in self.summary.devices.groups[len(self.lanes) :]:
            self.lanes.append(Lane(group))
        for lane in self.lanes:
            lane.doing.put(now, lane.group.doing)

    def _look_at_books(self, now: int) -> None:
        books, lend = self.summary.books, self._swings.lend
        self.ready.put(now, len(books.ready))
        self.in_flight.put(now, len(books.in_flight))
        # As the controller counts: with fewer samples to come than asked for, the devices go back when those are there.
        reachable = len(books.ready) + len(books.in_flight) + books.startable if lend is not None else 0
        self.give_back_at.put(now, None if lend is None else min(lend.give_back_at, reachable))

    def _add_step(self, event: StepDone, now: int) -> None:
        training = self.summary.training
        # Of a step without samples it has none.
        reward = training.rewards[-1] if len(training.rewards) > self._num_rewards else None
        self._num_rewards = len(training.rewards)
        self.steps.append(Step(event.step, now, reward, training.waits_s[-1], training.newest_staleness, event.metrics))

    def _note(self, entry: Entry, now: int) -> None:
        text = note_of(entry, self.summary.opened)
        if text is None and isinstance(entry.event, SwitchRejected):
            text = swing_note(entry, self.summary)
        if text is None:
            return
        if len(self.notes) >= MOST_NOTES and not isinstance(entry.event, RunEnded):
            self.notes_left_out += 1
            return
        self.notes.append(Note(now, entry.position, text, isinstance(entry.event, TROUBLE)))
