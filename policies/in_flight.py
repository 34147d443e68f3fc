"""The samples that are being generated, each with the seconds it has been worked on, folded from the rollouter's and replicas' events.

    SampleStarted ──▶ waiting ──free place──▶ standalone | hybrid ──SampleReady──▶ finished, its seconds kept
                         ▲                        │
                         └──────── RoutesCut ─────┘ (hybrid)

The log of a policy names no replica for a sample, so the places are reckoned: a replica works on as many samples as it runs requests, over
the answers of a sample; who waits longest gets the next place. When in truth samples overlap more, each one's seconds come out shorter and
the throughput, which is what counts, the same. All times are differences of the rollouter's own clock; what it did while nobody watched
(between two incarnations) is not counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import log
from typing import Literal

from bus.entry import Entry
from bus.events import ReplicaAdded, ReplicaLost, RoutesCut, RoutesOpened, RunPlanned, SampleDropped, SampleReady, SampleStarted

NANOSECONDS = 1e9
FINISHED = 384
"""Finished samples that are remembered."""
SHORTEST_S = 1e-3
"""A sample that no place was reckoned for took at least so long."""

Place = Literal["standalone", "hybrid"]


@dataclass(slots=True)
class Job:
    """A sample in flight."""

    place: Place | None
    """Where it is worked on; None: it waits."""
    worked_s: float
    """Seconds it was worked on, up to `since`."""
    since: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A sample that became ready."""

    sample: int
    log_s: float
    """Logarithm of the seconds it was worked on."""


@dataclass(frozen=True, slots=True)
class Span:
    """A sample's stay on a hybrid: worked on from so many seconds of its own to so many, to its end or not."""

    from_s: float
    to_s: float
    finished: bool


class InFlight:
    """Fold of who is worked on, and since when. Work of an entry: constant, but for one that changes what places there are."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        """Sample -> its job, in the order in which they were started."""
        self.finished: deque[Finished] = deque(maxlen=FINISHED)
        """The newest ones, in the order in which they became ready."""
        self.hybrid_spans: deque[Span] = deque(maxlen=FINISHED)
        self.places: dict[Place, int] = {"standalone": 0, "hybrid": 0}
        """Samples that can be worked on at a time; hybrids count while routes to them are open."""
        self.hybrid_places = 0
        """Samples that the hybrids can work on while they are lent."""
        self.now = 0
        """Time of the rollouter's newest entry, on its clock."""
        self._clock: tuple[str, int] = ("", 0)
        self._answers = 1
        self._most = 1
        self._slots: dict[str, tuple[Place, int]] = {}
        self._open: tuple[str, ...] = ()
        self._taken: dict[Place, int] = {"standalone": 0, "hybrid": 0}
        self._waiting: dict[int, None] = {}

    def worked_s(self, job: Job) -> float:
        """Seconds it was worked on until now."""
        return job.worked_s if job.place is None else job.worked_s + max(0, self.now - job.since) / NANOSECONDS

    @property
    def waiting(self) -> list[tuple[int, Job]]:
        """Samples without a place, the next one first."""
        return [(sample, self.jobs[sample]) for sample in self._waiting]

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        match entry.event:
            case SampleStarted(sample=sample):
                self._tick(entry)
                self._start(sample)
            case SampleReady(sample=sample):
                self._tick(entry)
                self._end(sample, is_ready=True)
            case SampleDropped(sample=sample):
                self._end(sample, is_ready=False)
            case RoutesOpened(replicas=replicas):
                self._tick(entry)
                self._open = replicas
                self._recount()
            case RoutesCut():
                self._tick(entry)
                self._open = ()
                self._recount()
            case ReplicaAdded(replica=name, role=role, slots=slots):
                self._slots[name] = (role, slots)
                self._recount()
            case ReplicaLost(replica=name):
                self._slots.pop(name, None)
                self._recount()
            case RunPlanned(rollout_n=answers, max_running_requests=most):
                self._answers, self._most = answers, most
            case _:
                pass

    def _tick(self, entry: Entry) -> None:
        clock = (entry.source, entry.epoch)
        if clock != self._clock:
            # Times of two incarnations are of two clocks.
            for job in self.jobs.values():
                job.worked_s, job.since = self.worked_s(job), entry.at
            self._clock = clock
            self.now = entry.at
        self.now = max(self.now, entry.at)

    def _start(self, sample: int) -> None:
        self.jobs[sample] = Job(None, 0.0, self.now)
        self._waiting[sample] = None
        self._fill()

    def _end(self, sample: int, is_ready: bool) -> None:
        job = self.jobs.pop(sample, None)
        if job is None:
            return
        self._waiting.pop(sample, None)
        if is_ready:
            self._finish(sample, job)
        if job.place is not None:
            self._note_span(job, finished=is_ready)
            self._taken[job.place] -= 1
            self._fill()

    def _finish(self, sample: int, job: Job) -> None:
        seconds = self.worked_s(job)
        if job.place is None and not seconds:
            # It was worked on in a place that was reckoned to be another's: the two change roles.
            other = next((other for other in self.jobs.values() if other.place is not None), job)
            seconds = self.worked_s(other)
            other.worked_s, other.since = 0.0, self.now
        self.finished.append(Finished(sample, log(max(SHORTEST_S, seconds))))

    def _note_span(self, job: Job, finished: bool) -> None:
        if job.place == "hybrid":
            self.hybrid_spans.append(Span(job.worked_s, self.worked_s(job), finished))

    def _fill(self) -> None:
        while self._waiting:
            place = self._free_place()
            if place is None:
                return
            sample = next(iter(self._waiting))
            del self._waiting[sample]
            job = self.jobs[sample]
            job.place, job.since = place, self.now
            self._taken[place] += 1

    def _free_place(self) -> Place | None:
        """The kind with the smaller share taken; the standalone ones of equals."""
        home, lent = self.places["standalone"], self.places["hybrid"]
        in_home, in_lent = self._taken["standalone"], self._taken["hybrid"]
        if in_lent < lent and (in_home >= home or in_lent * home < in_home * lent):
            return "hybrid"
        return "standalone" if in_home < home else None

    def _recount(self) -> None:
        """What places there are now; who has none any more waits, before those who had none."""
        open_hybrids = [name for name in self._open if name in self._slots]
        self.places["standalone"] = self._count([name for name, (place, _) in self._slots.items() if place == "standalone"])
        self.places["hybrid"] = self._count(open_hybrids)
        self.hybrid_places = self._count([name for name, (place, _) in self._slots.items() if place == "hybrid"])
        displaced: list[int] = []
        for place in self.places:
            surplus = self._taken[place] - self.places[place]
            if surplus > 0:
                there = [sample for sample, job in self.jobs.items() if job.place == place]
                displaced += there[-surplus:]
        for sample in displaced:
            job = self.jobs[sample]
            assert job.place is not None
            self._note_span(job, finished=False)
            self._taken[job.place] -= 1
            job.worked_s, job.place = self.worked_s(job), None
        self._waiting = dict.fromkeys([*sorted(displaced), *self._waiting])
        self._fill()

    def _count(self, names: list[str]) -> int:
        if not names:
            return 0
        return max(1, round(sum(min(self._most, self._slots[name][1]) for name in names) / self._answers))
