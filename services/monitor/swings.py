"""What each swing cost, phase by phase, and what the devices generated while they were lent.

    lend:  SwitchStarted ─yield─ first WakeRequested ─wake─ OpenRoutesRequested ─open─ SwitchDone
    back:  SwitchStarted ─cut─ first AbortRequested ─abort─ first SleepRequested ─sleep─ ReloadRequested ─reload─ SwitchDone

All of these are the controller's own entries, so each difference is one clock's; a swing over a restart of the controller has no seconds.

The cost of a lend is its own seconds and those of the swing back; its gain are the tokens that the woken replicas generated in between, and
in seconds the time that the standalone replicas, at the rate measured in this run, would have needed for them: so long the trainer would
have waited longer. Without standalone replicas nobody else could generate, and there is no such time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bus.entry import Entry
from bus.events import (
    AbortRequested,
    Event,
    OpenRoutesRequested,
    ReloadRequested,
    SleepRequested,
    SwitchDone,
    SwitchRejected,
    SwitchStarted,
    Target,
    WakeRequested,
)
from bus.requests import Outcome
from services.monitor.run_clock import NANOSECONDS

Holder = Literal["home", "swinging", "lent"]
KEPT_LENDS = 4
"""Newest lends whose requests are still counted when they end."""


@dataclass
class SwingCost:
    """One swing. While it runs `outcome` is empty."""

    swing: int
    target: Target
    reason: str
    position: int
    step: int
    """Steps done when it began."""
    ready_at_start: int
    epoch: int
    began_at: int
    outcome: str = ""
    """`done`, or why it was rejected."""
    seconds: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    lent_tokens: int = 0
    """Of a lend: tokens that the woken replicas generated, until the devices went back."""
    lent_seconds: float | None = None
    """Of a lend: from its end to the start of the swing back."""
    back_seconds: float | None = None
    """Of a lend: seconds of the swing back."""
    ended_at: int = 0
    phase: str = ""
    phase_at: int = 0

    @property
    def cost_seconds(self) -> float | None:
        """Of a lend: the way there and, once it is done, the way back."""
        return None if self.seconds is None else self.seconds + (self.back_seconds or 0.0)

    def gain_seconds(self, tokens_per_s: float | None) -> float | None:
        """Of a lend: what the others would have needed for its tokens at this rate."""
        return self.lent_tokens / tokens_per_s if tokens_per_s else None


class SwingCosts:
    """Fold of the swings' events."""

    def __init__(self) -> None:
        self.all: list[SwingCost] = []
        self.holder: Holder = "home"
        self.running: SwingCost | None = None
        self.lent_tokens = 0
        """Of all lends."""
        self.seconds = 0.0
        """Of all swings that have ended, and were measured."""
        self._lends: dict[int, SwingCost] = {}
        """The newest lends: outcomes of their requests may still come."""
        self._lend: SwingCost | None = None
        """The lend that is going on."""

    def apply(self, entry: Entry, outcomes: list[Outcome], steps_done: int, ready: int) -> None:
        """Takes in one entry, and the outcomes of generation requests that it brought."""
        event = entry.event
        match event:
            case SwitchStarted():
                self._start(entry, event, steps_done, ready)
            case SwitchDone() if self.running is not None and self.running.swing == event.swing:
                self._finish(entry, self.running, "done")
                self.holder = "lent" if event.target == "rollout" else "home"
            case SwitchRejected() if self.running is not None and self.running.swing == event.swing:
                self.holder = "home" if self.running.target == "rollout" else "lent"
                self._finish(entry, self.running, event.reason)
            case _:
                self._enter_phase(entry, event)
        for request, finished in outcomes:
            lend = self._lends.get(request.swing)
            if lend is not None and finished is not None:
                tokens = max(0, finished.num_tokens - request.prefix_tokens)
                lend.lent_tokens += tokens
                self.lent_tokens += tokens

    def _start(self, entry: Entry, event: SwitchStarted, steps_done: int, ready: int) -> None:
        first = "yield" if event.target == "rollout" else "cut"
        swing = SwingCost(
            event.swing,
            event.target,
            event.reason,
            entry.position,
            steps_done,
            ready,
            entry.epoch,
            entry.at,
            phase=first,
            phase_at=entry.at,
        )
        self.all.append(swing)
        self.running = swing
        self.holder = "swinging"
        if event.target == "rollout":
            self._lends[event.swing] = swing
            for oldest in list(self._lends)[:-KEPT_LENDS]:
                del self._lends[oldest]
        elif self._lend is not None and self._lend.epoch == entry.epoch:
            self._lend.lent_seconds = max(0, entry.at - self._lend.ended_at) / NANOSECONDS

    def _enter_phase(self, entry: Entry, event: Event) -> None:
        match event:
            case WakeRequested():
                name = "wake"
            case OpenRoutesRequested():
                name = "open"
            case AbortRequested(reason="swing"):
                name = "abort"
            case SleepRequested():
                name = "sleep"
            case ReloadRequested():
                name = "reload"
            case _:
                return
        if self.running is not None and self.running.phase != name:
            self._end_phase(entry, self.running)
            self.running.phase = name

    def _end_phase(self, entry: Entry, swing: SwingCost) -> None:
        if entry.epoch == swing.epoch:
            seconds = max(0, entry.at - swing.phase_at) / NANOSECONDS
            swing.phases[swing.phase] = swing.phases.get(swing.phase, 0.0) + seconds
        swing.phase_at = entry.at

    def _finish(self, entry: Entry, swing: SwingCost, outcome: str) -> None:
        self._end_phase(entry, swing)
        swing.outcome = outcome
        if entry.epoch == swing.epoch:
            swing.seconds = max(0, entry.at - swing.began_at) / NANOSECONDS
            self.seconds += swing.seconds
        else:
            swing.phases = {}
        swing.epoch, swing.ended_at = entry.epoch, entry.at
        self.running = None
        if outcome == "done":
            self._link(swing)

    def _link(self, swing: SwingCost) -> None:
        """A lend is open until a swing back is done."""
        if swing.target == "rollout":
            self._lend = swing
        elif self._lend is not None:
            self._lend.back_seconds = swing.seconds
            self._lend = None
