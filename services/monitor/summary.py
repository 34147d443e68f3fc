"""A run in numbers, from its log alone: `summarise(entries)` is what summary.json holds.

    entries ─▶ Summary ─┬─ Books, Requests          samples, tokens
                        ├─ Training                 rewards, waits, staleness, the trainer's seconds
                        ├─ SwingCosts               what each swing cost
                        └─ ClassClock x 2           who held the trainer's devices (on the controller's clock),
                                                    what each replica did (on the rollouter's)

Time counts from BoundaryOpened(0) to RunEnded; what was before is `startup_seconds`. The classes of time of one device exclude each other
and add up to what its clock measured. Seconds that no clock measured, such as those around a restart, are in none.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, isfinite

from bus.books import Books
from bus.entry import Entry
from bus.events import BoundaryOpened, DeadlineMissed, GenerationFinished, RunEnded, RunPlanned, ServiceLost
from bus.requests import REPLICA_PREFIX, Requests
from services.monitor.clocks import NANOSECONDS, ClassClock
from services.monitor.replicas import ReplicaStates
from services.monitor.swings import SwingCost, SwingCosts
from services.monitor.training import Training, mean, quarter

Number = int | float | None
TRAINER = "trainer"
PRECISION = 6


class Summary:
    """Fold of a whole log; feed it every entry once, in order."""

    def __init__(self) -> None:
        self.books = Books()
        self.requests = Requests()
        self.training = Training()
        self.swings = SwingCosts()
        self.replicas = ReplicaStates(self.requests)
        self.devices = ClassClock("controller")
        """Lane `trainer`: home, swinging, lent."""
        self.lanes = ClassClock("rollouter")
        """One lane a replica."""
        self.entries = 0
        self.last_chain = ""
        self.opened = False
        self.ended: RunEnded | None = None
        self.tokens_generated = 0
        self.services_lost = 0
        self.deadlines_missed = 0
        self.startup_s: float | None = None
        self._controller_began: tuple[int, int] | None = None

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        self.entries, self.last_chain = entry.position, entry.chain
        if self.ended is not None:
            return
        if isinstance(event, RunPlanned):
            self.replicas.plan(event.standalone, event.hybrid)
        self.books.apply(event)
        outcomes = self.requests.apply(entry)
        self.replicas.apply(entry)
        self.swings.apply(entry, outcomes, self.books.steps_done, len(self.books.ready))
        self.training.apply(event, home=self.swings.holder == "home")
        for request, finished in outcomes:
            self.tokens_generated += max(0, finished.num_tokens - request.prefix_tokens) if finished is not None else 0
        self._count(entry)
        self._time(entry)

    def _count(self, entry: Entry) -> None:
        match entry.event:
            case GenerationFinished(outcome="stop" | "length") as event:
                self.replicas.count_answer(event.replica)
            case ServiceLost():
                self.services_lost += 1
            case DeadlineMissed():
                self.deadlines_missed += 1
            case BoundaryOpened():
                self._open(entry)
            case RunEnded() as event:
                self.ended = event
            case _:
                pass

    def _open(self, entry: Entry) -> None:
        if not self.opened and self._controller_began is not None and self._controller_began[0] == entry.epoch:
            self.startup_s = max(0, entry.at - self._controller_began[1]) / NANOSECONDS
        self.opened = True

    def _time(self, entry: Entry) -> None:
        if entry.source == self.devices.source and (self._controller_began is None or self._controller_began[0] != entry.epoch):
            self._controller_began = (entry.epoch, entry.at)
        if self.opened and entry.source == self.devices.source:
            self.devices.tick(entry, {TRAINER: self.swings.holder})
        elif self.opened and entry.source == self.lanes.source:
            self.lanes.tick(entry, dict(self.replicas.doing()))

    # --- what comes out ----------------------------------------------------------------------------------------------------------

    def trainer_seconds(self) -> dict[str, float]:
        """Where the time of the trainer's devices went; `other` is what nobody accounts for."""
        held = self.devices.split(TRAINER)
        classes = {name: self.training.seconds.get(name, 0.0) for name in ("train", "load", "wait", "publish", "checkpoint")}
        other = max(0.0, held.get("home", 0.0) - fsum(classes.values()))
        return {**classes, "swing": held.get("swinging", 0.0), "lent": held.get("lent", 0.0), "other": other}

    def as_dict(self) -> dict[str, object]:
        """What summary.json holds."""
        return _rounded({**self._run(), **self._samples(), **self._seconds(), **self._swings()})

    def _run(self) -> dict[str, object]:
        plan, ended = self.books.plan, self.ended
        return {
            "run": None if plan is None else plan.run,
            "policy": None if plan is None else plan.policy,
            "ended": "" if ended is None else ended.reason,
            "ended_detail": "" if ended is None else ended.detail,
            "wall_seconds": self.devices.total_s,
            "startup_seconds": self.startup_s,
            "steps": self.books.steps_done,
            "version": self.books.version,
            "reward_first_quarter": quarter(self.training.rewards, last=False),
            "reward_last_quarter": quarter(self.training.rewards, last=True),
            "services_lost": self.services_lost,
            "replicas_lost": self.replicas.lost,
            "controller_restarts": self.devices.restarts,
            "deadlines_missed": self.deadlines_missed,
            "last_position": self.entries,
            "last_chain": self.last_chain,
        }

    def _samples(self) -> dict[str, object]:
        books, staleness, wall = self.books, self.training.staleness_of_trained(), self.devices.total_s
        return {
            "samples_started": books.started,
            "samples_trained": books.trained,
            "samples_dropped": sum(books.dropped.values()),
            "samples_dropped_by_reason": dict(books.dropped),
            "samples_ready_at_end": len(books.ready),
            "samples_in_flight_at_end": len(books.in_flight),
            "staleness": None if staleness is None else {"min": staleness.smallest, "mean": staleness.mean, "max": staleness.largest},
            "tokens_generated": self.tokens_generated,
            "tokens_trained": self.training.tokens,
            "tokens_per_second": share(self.tokens_generated, wall),
        }

    def _seconds(self) -> dict[str, object]:
        waits, seconds, wall = self.training.waits_s, self.trainer_seconds(), self.devices.total_s
        return {
            "wait_seconds": fsum(waits),
            "wait_seconds_per_step": mean(waits),
            "wait_seconds_longest": max(waits, default=None),
            "train_resource_utilization": share(seconds["train"], wall - seconds["swing"] - seconds["lent"]),
            "rollout_resource_utilization": share(self._unit_seconds("generate"), self._unit_seconds("generate", "idle", "update")),
            "resource_utilization": self._resource_utilization(seconds["train"]),
            "trainer_seconds": seconds,
            "replica_seconds": {name: self.lanes.split(name) for name in self.lanes.lanes()},
        }

    def _resource_utilization(self, train_s: float) -> Number:
        """Busy share of all device-seconds: the trainer's, whoever holds them, and those of standalone replicas."""
        units = self._units(TRAINER)
        alone = [name for name, state in self.replicas.by_name.items() if not state.hybrid]
        standalone = fsum(self._units(name) * fsum(self.lanes.split(name).values()) for name in alone)
        return share(units * train_s + self._unit_seconds("generate"), units * self.devices.total_s + standalone)

    def _unit_seconds(self, *classes: str) -> float:
        """Seconds that replicas spent in some classes, times the cores or GPUs of each."""
        return fsum(self._units(lane) * self.lanes.seconds(lane, name) for lane in self.lanes.lanes() for name in classes)

    def _units(self, lane: str) -> float:
        """Cores or GPUs that the trainer or a replica holds, 1 if it is not said. Hybrids share the trainer's."""
        plan = self.books.plan
        if plan is None:
            return 1.0
        if lane in plan.hybrid:
            return self._units(TRAINER) / len(plan.hybrid)
        device = plan.devices.get(lane if lane == TRAINER else f"{REPLICA_PREFIX}{lane}", "")
        return float(len(device.split(",")))

    def _swings(self) -> dict[str, object]:
        swings, seconds, wall = self.swings.all, self.trainer_seconds(), self.devices.total_s
        return {
            "swings": [_swing(swing) for swing in swings],
            "swing_count": sum(swing.outcome == "done" for swing in swings),
            "swing_seconds": seconds["swing"],
            "swing_share": share(seconds["swing"], wall),
            "lent_seconds": seconds["lent"],
            "lent_share": share(seconds["lent"], wall),
            "lent_tokens": sum(swing.lent_tokens for swing in swings),
        }


def summarise(entries: Iterable[Entry]) -> dict[str, object]:
    """The summary of a log."""
    summary = Summary()
    for entry in entries:
        summary.apply(entry)
    return summary.as_dict()


def share(part: float, whole: float) -> Number:
    """None of nothing."""
    return part / whole if whole > 0 else None


def _swing(swing: SwingCost) -> dict[str, object]:
    return {
        "swing": swing.swing,
        "target": swing.target,
        "reason": swing.reason,
        "outcome": swing.outcome,
        "position": swing.position,
        "step": swing.step,
        "ready": swing.ready_at_start,
        "seconds": swing.seconds,
        "phases": swing.phases,
        "lent_tokens": swing.lent_tokens,
    }


def _rounded(value: dict[str, object]) -> dict[str, object]:
    """To microseconds; what is no number is null, for JSON knows nothing else."""
    return {name: _round(inner) for name, inner in value.items()}


def _round(value: object) -> object:
    if isinstance(value, float):
        return round(value, PRECISION) if isfinite(value) else None
    if isinstance(value, dict):
        return _rounded(value)
    return [_round(inner) for inner in value] if isinstance(value, list) else value
