"""Keeps a run within its memory budget: first a pause, in which what is there is trained and removed, in the end the run's end.

    used ≥ pause_at · budget ─▶ RolloutPaused ─ used < resume_at · budget, or nothing moves any more ─▶ RolloutResumed
    used ≥ budget            ─▶ RolloutPaused with both numbers ─▶ controller: RunEnded(memory)

A pause in which nothing moves frees nothing: too few samples are ready for a step, or the devices are lent until more are. Then samples
are started again, and the next pause comes when half of what is left is used, too: the run gets on or comes to its end, with few pauses.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.books import Books
from bus.entry import Entry
from bus.events import (
    BatchFormed,
    GenerationFinished,
    RolloutPaused,
    RolloutResumed,
    RunEnded,
    RunPlanned,
    SampleDropped,
    SampleReady,
    SampleStarted,
    SettingChanged,
    StepDone,
    WeightsPublished,
)
from bus.settings import Beside

KINDS = tuple(
    event.kind
    for event in (
        BatchFormed, GenerationFinished, RolloutPaused, RolloutResumed, RunEnded, RunPlanned, SampleDropped, SampleReady, SampleStarted,
        SettingChanged, StepDone, WeightsPublished,
    )
)  # fmt: skip
"""All that this fold looks at."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Shares of the budget."""

    resume_at: float
    pause_at: float

    def changed(self, beside: Beside) -> Marks:
        """With what was changed on the live run; samples are never started again above where they pause."""
        pause_at = self.pause_at if beside.memory_pause_at is None else beside.memory_pause_at
        resume_at = self.resume_at if beside.memory_resume_at is None else beside.memory_resume_at
        return Marks(min(resume_at, pause_at), pause_at)


class Brake:
    """Fold of the pauses for memory, and what to say next. `seconds` is monotonic, so that a pause without any movement can be told."""

    def __init__(self, marks: Marks, still_s: float) -> None:
        self._configured = self._marks = marks
        self._still_s = still_s
        self._books = Books()
        self._paused = False
        self._over = False
        """The controller has been told that the budget is used up."""
        self._pause_at = marks.pause_at
        """Where the next pause comes: higher after one that did not help."""
        self._ended = False
        self._moved_at = 0.0

    @property
    def beside(self) -> Beside:
        """What was changed on the live run of how much memory may be used."""
        return self._books.settings.beside

    @property
    def short_at(self) -> float:
        """Share of the budget from which on memory is short."""
        return self._marks.resume_at

    def apply(self, entry: Entry, seconds: float) -> None:
        """Takes in one entry, read at `seconds`."""
        event = entry.event
        if event.kind not in KINDS:
            return
        self._books.apply(event)
        self._moved_at = seconds
        match event:
            case RolloutPaused(reason="memory"):
                self._paused = True
                self._over = self._over or event.is_over_budget
            case RolloutResumed(reason="memory"):
                self._paused = False
                self._pause_at = max(self._marks.pause_at, (1 + event.used_bytes / max(1, event.budget_bytes)) / 2)
            case SettingChanged():
                self._take_marks(self._configured.changed(self.beside))
            case RunEnded():
                self._ended = True
            case _:
                pass

    def _take_marks(self, marks: Marks) -> None:
        if marks != self._marks:
            self._marks, self._pause_at = marks, marks.pause_at

    def decide(self, used: int, budget: int, seconds: float, up_to_date: bool = True) -> RolloutPaused | RolloutResumed | None:
        """What is to be said when the run takes `used` of `budget` bytes at `seconds`; None: nothing.

        `up_to_date`: every entry of the log was taken in. While a full disk holds entries back nobody can tell whether anything moves.
        """
        if self._ended or self._over:
            return None
        paused = RolloutPaused(reason="memory", used_bytes=used, budget_bytes=budget)
        if used >= budget:
            return paused
        is_low = used < self._marks.resume_at * budget
        if is_low:
            self._pause_at = self._marks.pause_at
        if not self._paused:
            return paused if used >= self._pause_at * budget else None
        if is_low or (up_to_date and self._is_still(seconds)):
            return RolloutResumed(reason="memory", used_bytes=used, budget_bytes=budget)
        return None

    def _is_still(self, seconds: float) -> bool:
        """No sample is generated, none is trained, and nothing else has moved for a while."""
        return not self._books.in_flight and self._books.batch is None and seconds - self._moved_at >= self._still_s
