"""How fast samples are made with and without the hybrids, and what swings and steps take: measured, of the newest cycles.

Speeds are taken on the rollouter's clock alone, of each sample that a slot was there for (in samples: slots / answers of a sample):

    RoutesCut, start ─▶ alone: samples made / Σ samples served · seconds        RoutesOpened ─▶ together: the same

A sample that becomes ready was made over all the time since it was started: of one that was in flight for 30 s, and for 20 of them while
the hybrids were open, 2/3 was made together. (Counted where it becomes ready, it would be the merit of those who only finished it.)
What was never seen is unknown, and stays so: nothing is taken from how many replicas there are. What was seen long ago counts until it is
seen again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import fsum

from bus.books import Books
from bus.entry import Entry
from bus.events import ReplicaAdded, RoutesCut, RoutesOpened, SampleDropped, SampleReady, SampleStarted, StepDone
from policies.swings import RECENT, Swings
from services.monitor.cycle_model import Flow, Pace
from services.monitor.run_clock import NANOSECONDS

KEPT_CYCLES = 8
"""Newest cycles that a speed is taken over, of those that had any; the running one is not counted."""
ROLLOUTER = "rollouter"


@dataclass(slots=True)
class _Made:
    """How much was made, in samples, and over how many nanoseconds of samples that were served."""

    samples: float = 0.0
    served: float = 0.0


class _Parts:
    """The newest cycles of one of the two ways in which samples are made."""

    def __init__(self) -> None:
        self.cycles: deque[_Made] = deque([_Made()], maxlen=KEPT_CYCLES + 1)
        self.passed = 0
        """Nanoseconds in all, with samples in flight."""

    def turn(self) -> None:
        """A cycle without any says nothing, and pushes none out that does."""
        if self.cycles[-1].served:
            self.cycles.append(_Made())

    @property
    def speed(self) -> float:
        """Share of a sample that a second made of each one that was served; 0 while unknown."""
        seconds = fsum(part.served for part in self.cycles) / NANOSECONDS
        return fsum(part.samples for part in self.cycles) / seconds if seconds > 0 else 0.0


class PaceFold:
    """Fold of the samples', steps', replicas' and swings' events. Feed it every entry once, in order, after the books."""

    def __init__(self) -> None:
        self._swings = Swings()
        self._train_s: deque[float] = deque(maxlen=RECENT)
        self._alone, self._together = _Parts(), _Parts()
        self._open = False
        """Hybrids are open for requests."""
        self._slots: dict[str, int] = {}
        """Replica -> requests that it runs at a time."""
        self._served = (0.0, 0.0)
        """Samples that are served at a time, at most: alone, together."""
        self._seen: tuple[int, int] = (0, 0)
        """Epoch and time of the rollouter's newest entry."""
        self._in_flight = 0
        """After it."""
        self._started: dict[int, tuple[int, int]] = {}
        """Sample in flight -> nanoseconds alone and together that had passed when it was started."""

    def apply(self, entry: Entry, books: Books) -> None:
        """Takes in one entry, which the books have already."""
        self._swings.apply(entry)
        if entry.source == ROLLOUTER:
            self._pass_time(entry)
        match entry.event:
            case SampleStarted() as event:
                self._started[event.sample] = (self._alone.passed, self._together.passed)
            case SampleReady() as event if (began := self._started.pop(event.sample, None)) is not None:
                self._make(*began)
            case SampleDropped() as event:
                self._started.pop(event.sample, None)
            case RoutesOpened():
                self._open = True
            case RoutesCut():
                self._open = False
            case ReplicaAdded() as event:
                self._add_replica(event, books)
            case StepDone() as event if "train" in event.seconds:
                self._train_s.append(event.seconds["train"] + event.seconds.get("load", 0.0))
            case _:
                pass
        if entry.source == ROLLOUTER:
            self._in_flight = len(books.in_flight)

    def end_cycle(self) -> None:
        """Turns the page."""
        self._alone.turn()
        self._together.turn()

    def known(self) -> Pace | None:
        """The numbers; None while one of them was never measured, see `missing`."""
        if self.missing():
            return None
        return Pace(
            alone=self.alone,
            together=self.together,
            lend_s=_mean(self._swings.activations_s),
            back_s=_mean(self._swings.deactivations_s),
            train_s=_mean(self._train_s),
        )

    @property
    def alone(self) -> Flow:
        """While the hybrids sleep; a speed of 0 while it is unknown."""
        return Flow(self._alone.speed, self._served[False])

    @property
    def together(self) -> Flow:
        """While hybrids are open for requests; a speed of 0 while it is unknown."""
        return Flow(self._together.speed, self._served[True])

    def missing(self) -> str:
        """Why nothing can be estimated; empty when it can."""
        if not self._train_s:
            return "no step was measured"
        if not self._swings.activations_s or not self._together.speed:
            return "no lend was measured"
        if not self._swings.deactivations_s:
            return "no way back was measured"
        return "" if self._alone.speed else "no sample was made without hybrids"

    def _add_replica(self, event: ReplicaAdded, books: Books) -> None:
        assert books.plan is not None
        self._slots[event.replica] = event.slots
        alone = sum(self._slots.get(name, 0) for name in books.plan.standalone)
        hybrid = sum(self._slots.get(name, 0) for name in books.plan.hybrid)
        self._served = (alone / books.plan.rollout_n, (alone + hybrid) / books.plan.rollout_n)

    def _pass_time(self, entry: Entry) -> None:
        epoch, at = self._seen
        if epoch == entry.epoch and self._in_flight:
            part, passed = self._together if self._open else self._alone, max(0, entry.at - at)
            part.passed += passed
            part.cycles[-1].served += passed * min(self._in_flight, max(1.0, self._served[self._open]))
        self._seen = (entry.epoch, entry.at)

    def _make(self, alone: int, together: int) -> None:
        alone, together = self._alone.passed - alone, self._together.passed - together
        share = together / (alone + together) if alone + together else float(self._open)
        self._alone.cycles[-1].samples += 1 - share
        self._together.cycles[-1].samples += share


def _mean(seconds: deque[float]) -> float:
    return fsum(seconds) / len(seconds)
