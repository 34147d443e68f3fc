"""Samples in flight: on the slots of the two replicas, or waiting for one.

fresh ─▶ standalone | hybrid slot ─▶ ready            standalone: 1 replica, always there; hybrid: 1 replica, while its routes are open
             ▲           └─cut─▶ waiting ─┐           a sample keeps its progress; on another replica it needs move_seconds more
             └────────────────────────────┘

What the regimes leave open is decided as the rollouter decides it: a new sample is started only when a slot is free and the staleness limit
has room; samples that were moved are served first, in the order in which they were routed; the replica with the smaller share of its slots
taken gets the next one, ties alternate. Running samples are not moved when a hybrid wakes: the speed does not depend on the load, so it
would only cost. While weights are published no replica generates: what runs is delayed by that time, and as new weights end each request,
what waited meanwhile comes first; who goes on where it was pays nothing. A hybrid that slept has forgotten all: who comes back to it pays.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

STANDALONE, HYBRID = "s0", "h0"


@dataclass(frozen=True, slots=True)
class Placed:
    """A sample that got a slot."""

    sample: int
    replica: str
    is_new: bool
    moved_from: str = ""
    """The replica that it left, if that is another one."""


class Slots:
    """Times are absolute seconds and come from the caller, in order."""

    def __init__(self, lengths: Sequence[float], standalone: int, hybrid: int, move_s: float) -> None:
        self.started = 0
        self._lengths = lengths
        self._capacity = {STANDALONE: standalone, HYBRID: 0}
        self._hybrid_slots = hybrid
        self._move_s = move_s
        self._load = {STANDALONE: 0, HYBRID: 0}
        self._running: list[tuple[float, int, str]] = []
        """(when it is ready, sample, replica), the next one last."""
        self._waiting: deque[tuple[int, float, str]] = deque()
        """(sample, seconds to go, the replica it left)."""
        self._routed = 0
        self._order: dict[int, int] = {}
        """Sample -> number of its newest routing."""

    @property
    def in_flight(self) -> int:
        """Samples that were started and are not ready."""
        return len(self._running) + len(self._waiting)

    @property
    def next_ready_at(self) -> float:
        """When the next sample is ready; inf: none runs."""
        return -self._running[-1][0] if self._running else inf

    def finish(self) -> int:
        """The next sample is ready."""
        _, sample, replica = self._running.pop()
        self._load[replica] -= 1
        del self._order[sample]
        return sample

    def fill(self, now: float, room: int) -> list[Placed]:
        """Gives free slots to what waits, then to new samples while the staleness limit has `room` for them."""
        placed = []
        while self._load[STANDALONE] < self._capacity[STANDALONE] or self._load[HYBRID] < self._capacity[HYBRID]:
            if self._waiting:
                sample, seconds, left = self._waiting.popleft()
                replica = self._choose(stay=left == STANDALONE)
                placed.append(Placed(sample, replica, False, left if replica != left else ""))
                seconds += 0.0 if replica == left == STANDALONE else self._move_s
            elif room > 0:
                sample = self.started
                self.started += 1
                room -= 1
                replica = self._choose(stay=False)
                placed.append(Placed(sample, replica, True))
                seconds = self._lengths[sample]
            else:
                break
            self._run(sample, now + seconds, replica)
        return placed

    def _choose(self, stay: bool) -> str:
        load, capacity = self._load, self._capacity
        if load[HYBRID] >= capacity[HYBRID] or (stay and load[STANDALONE] < capacity[STANDALONE]):
            return STANDALONE
        if load[STANDALONE] >= capacity[STANDALONE]:
            return HYBRID
        here, there = load[STANDALONE] * capacity[HYBRID], load[HYBRID] * capacity[STANDALONE]
        if here == there:
            return (STANDALONE, HYBRID)[self._routed % 2]
        return STANDALONE if here < there else HYBRID

    def _run(self, sample: int, ready_at: float, replica: str) -> None:
        self._load[replica] += 1
        self._order[sample] = self._routed
        self._routed += 1
        insort(self._running, (-ready_at, sample, replica))

    def open_hybrid(self) -> None:
        """Samples may go to the hybrid from now on."""
        self._capacity[HYBRID] = self._hybrid_slots

    def cut_hybrid(self, now: float) -> None:
        """The hybrid gives up what it runs."""
        self._capacity[HYBRID] = 0
        self._leave(HYBRID, now)

    def delay(self, seconds: float) -> None:
        """Nothing is generated for so long."""
        self._running = [(at - seconds, sample, replica) for at, sample, replica in self._running]

    def update(self, now: float) -> None:
        """The standalone replica takes new weights: what it runs goes on as a new request each, behind what waits."""
        if self._waiting:
            self._leave(STANDALONE, now)
        else:
            self._routed += self._load[STANDALONE]

    def _leave(self, replica: str, now: float) -> None:
        leaving = [(self._order[sample], sample, -at - now) for at, sample, where in self._running if where == replica]
        self._running = [item for item in self._running if item[2] != replica]
        self._load[replica] = 0
        self._waiting += [(sample, seconds, replica) for _, sample, seconds in sorted(leaving)]
