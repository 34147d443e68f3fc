"""Who holds the trainer's devices, and what the swings cost, folded from the controller's events.

home ──SwitchStarted(rollout)──▶ moving ──SwitchDone──▶ lent ──SwitchStarted(train)──▶ moving ──SwitchDone──▶ home
                                   └──SwitchRejected──▶ home
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from bus.entry import Entry
from bus.events import SwitchDone, SwitchRejected, SwitchRequested, SwitchStarted, Target

NANOSECONDS = 1e9
RECENT = 16
"""Measurements kept of each kind."""

Holder = Literal["home", "moving", "lent"]


@dataclass(frozen=True, slots=True)
class Running:
    """A swing that has begun and not ended."""

    swing: int
    target: Target
    source: str
    epoch: int
    at: int


@dataclass(frozen=True, slots=True)
class Lend:
    """The lend that runs or is done and is not going back yet."""

    swing: int
    reason: str
    give_back_at: int
    """Ready samples at which the devices go back; amendments are in it."""
    max_lent_s: float


@dataclass(frozen=True, slots=True)
class CycleCosts:
    """Seconds of the last lend and of the last return that ended in one cycle; 0: there was none, or it could not be measured."""

    activation_s: float = 0.0
    deactivation_s: float = 0.0


class Swings:
    """Fold of the swing's events. A swing's seconds count only if one incarnation of the controller saw its start and its end."""

    def __init__(self) -> None:
        self.holder: Holder = "home"
        self.running: Running | None = None
        self.lend: Lend | None = None
        self.last_lend = 0
        """Swing id of the newest lend, 0 before the first."""
        self.activations_s: deque[float] = deque(maxlen=RECENT)
        self.deactivations_s: deque[float] = deque(maxlen=RECENT)
        self.this_cycle = CycleCosts()
        self.last_cycle = CycleCosts()

    def begin_cycle(self) -> None:
        """Turns the page: what was this cycle's is the last one's."""
        self.last_cycle = self.this_cycle
        self.this_cycle = CycleCosts()

    def apply(self, entry: Entry) -> None:
        """Takes in one entry; others than those of swings are ignored."""
        match entry.event:
            case SwitchStarted() as event:
                self._start(entry, event)
            case SwitchDone() as event:
                if self.running is not None and self.running.swing == event.swing:
                    self._finish(entry, self.running)
            case SwitchRejected() as event:
                if self.running is not None and self.running.swing == event.swing:
                    self._reject(self.running)
            case SwitchRequested(target="rollout", amends=int(swing)) as event:
                if self.lend is not None and self.lend.swing == swing:
                    self._amend(self.lend, event)
            case _:
                pass

    def _start(self, entry: Entry, event: SwitchStarted) -> None:
        self.holder = "moving"
        self.running = Running(event.swing, event.target, entry.source, entry.epoch, entry.at)
        self.lend = None
        if event.target == "rollout":
            self.lend = Lend(event.swing, event.reason, event.give_back_at, event.max_lent_s)
            self.last_lend = event.swing

    def _finish(self, entry: Entry, running: Running) -> None:
        self.running = None
        self.holder = "lent" if running.target == "rollout" else "home"
        if (entry.source, entry.epoch) != (running.source, running.epoch):
            return
        seconds = max(0, entry.at - running.at) / NANOSECONDS
        if running.target == "rollout":
            self.activations_s.append(seconds)
            self.this_cycle = replace(self.this_cycle, activation_s=seconds)
        else:
            self.deactivations_s.append(seconds)
            self.this_cycle = replace(self.this_cycle, deactivation_s=seconds)

    def _reject(self, running: Running) -> None:
        self.running = None
        self.lend = None
        self.holder = "home" if running.target == "rollout" else "lent"

    def _amend(self, lend: Lend, event: SwitchRequested) -> None:
        # The controller lends by itself when nobody else can generate: going back with fewer samples would starve the trainer again.
        lowest = lend.give_back_at if lend.reason in ("starved", "evaluation") else 0
        give_back_at = max(lowest, event.give_back_at)
        self.lend = replace(lend, give_back_at=give_back_at, max_lent_s=event.max_lent_s or lend.max_lent_s)
