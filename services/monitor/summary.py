"""A run in numbers, from its log alone: `summarise(entries)` is what summary.json holds.

    entries ─▶ Summary ─┬─ Books, Requests          samples, tokens
                        ├─ Training                 rewards, waits, staleness, ready samples
                        ├─ SwingCosts               what each swing cost, and gave
                        ├─ PolicyHistory            who decided from where on; ShadowComparisons: who would have decided otherwise
                        └─ RunClock ─▶ DeviceTimes  what each device did in every interval, and how much of it was used

Time counts from BoundaryOpened(0) to RunEnded; what was before is `startup_seconds`. The classes of a device's time exclude each other
and add up to the time that it was held.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, isfinite

from bus.books import Books
from bus.entry import Entry
from bus.events import (
    BoundaryOpened,
    DeadlineMissed,
    EvalDone,
    GenerationFinished,
    RunEnded,
    RunPlanned,
    ServiceLost,
    ServiceStarted,
    StepDone,
)
from bus.requests import ANSWERING, Requests
from services.agreement import Agreement
from services.monitor.device_times import DeviceTimes, Group, Totals, share
from services.monitor.policy_history import PolicyHistory
from services.monitor.policy_numbers import policy_numbers
from services.monitor.replicas import ReplicaStates
from services.monitor.run_clock import NANOSECONDS, RunClock
from services.monitor.shadows import ShadowComparisons
from services.monitor.swings import SwingCost, SwingCosts
from services.monitor.syncs import WeightSyncs
from services.monitor.training import Distribution, Training, mean, quarter

Number = int | float | None
PRECISION = 6


class Summary:
    """Fold of a whole log; feed it every entry once, in order."""

    def __init__(self) -> None:
        self.books = Books()
        self.requests = Requests()
        self.training = Training()
        self.agreement = Agreement()
        self.swings = SwingCosts()
        self.syncs = WeightSyncs()
        self.policies = PolicyHistory()
        self.shadows = ShadowComparisons()
        self.replicas = ReplicaStates(self.requests)
        self.clock = RunClock()
        self.devices = DeviceTimes(self.replicas)
        self.entries = 0
        self.last_chain = ""
        self.opened_at: int | None = None
        """When boundary 0 was opened, on the run's clock."""
        self.ended: RunEnded | None = None
        self.tokens_generated = 0
        self.tokens_standalone = 0
        """Those that standalone replicas generated."""
        self.evaluations: list[EvalDone] = []
        self.services_lost = 0
        self.deadlines_missed = 0
        self.controller_starts = 0

    @property
    def opened(self) -> bool:
        """Boundary 0 was opened."""
        return self.opened_at is not None

    @property
    def wall_s(self) -> float:
        """Seconds since boundary 0 was opened, up to the newest entry or the end."""
        return 0.0 if self.opened_at is None else (self.clock.now - self.opened_at) / NANOSECONDS

    @property
    def standalone_tokens_per_s(self) -> float | None:
        """What the standalone replicas together generate in a second, while any of them does."""
        return share(self.tokens_standalone, self.totals().standalone_s)

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        self.entries, self.last_chain = entry.position, entry.chain
        if self.ended is not None:
            return
        now = self.clock.apply(entry)
        if isinstance(event, RunPlanned):
            self.replicas.plan(event.standalone, event.hybrid)
            self.devices.plan(event)
        self.books.apply(event)
        outcomes = self.requests.apply(entry)
        self.replicas.apply(entry)
        self.swings.apply(entry, outcomes, self.books.steps_done, len(self.books.ready))
        self.devices.apply(entry, now, self.swings.holder)
        self.training.apply(event, len(self.books.ready))
        self.syncs.apply(event)
        if type(event) not in ANSWERING:
            self.policies.apply(entry, self.shadows.next_boundary)
            self.shadows.apply(entry, self.books, self.policies)
        for request, finished in outcomes:
            tokens = 0 if finished is None else max(0, finished.num_tokens - request.prefix_tokens)
            self.tokens_generated += tokens
            self.tokens_standalone += tokens if request.swing == 0 else 0
        self._count(entry, now)

    def _count(self, entry: Entry, now: int) -> None:
        match entry.event:
            case GenerationFinished(outcome="stop" | "length") as event:
                self.replicas.count_answer(event.replica)
            case ServiceStarted() if entry.source == "controller":
                self.controller_starts += 1
            case StepDone() as event if self.training.newest is event and self.books.plan is not None:
                self.agreement.apply(event, self.books.plan.max_logprob_diff)
            case ServiceLost():
                self.services_lost += 1
            case DeadlineMissed():
                self.deadlines_missed += 1
            case EvalDone() as event:
                self.evaluations.append(event)
            case BoundaryOpened() if self.opened_at is None:
                self.opened_at = now
                self.devices.open(now)
            case RunEnded() as event:
                self.ended = event
                self.devices.end(now)
            case _:
                pass

    def totals(self) -> Totals:
        """Device-seconds up to the newest entry."""
        return self.devices.totals(self.clock.now)

    # --- what comes out ----------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, object]:
        """What summary.json holds."""
        policies = policy_numbers(self.policies, self.shadows)
        return _rounded({**self._run(), **policies, **self._samples(), **self._seconds(), **self._swings()})

    def _run(self) -> dict[str, object]:
        plan, ended = self.books.plan, self.ended
        return {
            "run": None if plan is None else plan.run,
            "policy": None if plan is None else plan.policy,
            "ended": "" if ended is None else ended.reason,
            "ended_detail": "" if ended is None else ended.detail,
            "wall_seconds": self.wall_s,
            "startup_seconds": None if self.opened_at is None else self.opened_at / NANOSECONDS,
            "steps": self.books.steps_done,
            "version": self.books.version,
            "reward_first_quarter": quarter(self.training.rewards, last=False),
            "reward_last_quarter": quarter(self.training.rewards, last=True),
            "services_lost": self.services_lost,
            "replicas_lost": self.replicas.lost,
            "controller_restarts": max(0, self.controller_starts - 1),
            "deadlines_missed": self.deadlines_missed,
            "last_position": self.entries,
            "last_chain": self.last_chain,
        }

    def _samples(self) -> dict[str, object]:
        books, training = self.books, self.training
        return {
            "samples_started": books.started,
            "samples_trained": books.trained,
            "samples_dropped": sum(books.dropped.values()),
            "samples_dropped_by_reason": dict(books.dropped),
            "samples_ready_at_end": len(books.ready),
            "samples_in_flight_at_end": len(books.in_flight),
            "ready_samples": _distribution(Distribution.of(training.ready)),
            "staleness": _distribution(training.staleness_of_trained()),
            "logprob_diff": {name: _distribution(Distribution.of(values)) for name, values in training.logprob_diff.items()},
            **self._agreement(),
            "evaluations": [{"version": done.version, "partial": done.partial, **done.metrics} for done in self.evaluations],
        }

    def _agreement(self) -> dict[str, object]:
        """Of tokens and the very weights that sampled them."""
        plan, found = self.books.plan, self.agreement
        return {
            "logprob_diff_same_version": found.mean,
            "logprob_diff_measured_steps": len(found.means),
            "max_logprob_diff": None if plan is None else plan.max_logprob_diff,
            "disagreements": [
                {"step": one.step, "version": one.version, "mean": one.mean, "limit": one.limit} for one in found.disagreements
            ],
        }

    def _seconds(self) -> dict[str, object]:
        waits, totals = self.training.waits_s, self.totals()
        return {
            "wait_seconds": fsum(waits),
            "wait_seconds_per_step": mean(waits),
            "wait_seconds_longest": max(waits, default=None),
            "tokens_generated": self.tokens_generated,
            "tokens_trained": self.training.tokens,
            "tokens_per_second": share(self.tokens_generated, self.wall_s),
            "tokens_per_device_second": share(self.tokens_generated, totals.held),
            "tokens_trained_per_device_second": share(self.training.tokens, totals.held),
            "train_resource_utilization": totals.train_utilization,
            "rollout_resource_utilization": totals.rollout_utilization,
            "resource_utilization": totals.utilization,
            "device_seconds": totals.held,
            "devices": [self._device(group) for group in self.devices.groups],
            "trainer_seconds": dict(self.training.seconds),
            "weight_syncs": self.syncs.as_dict(),
        }

    def _device(self, group: Group) -> dict[str, object]:
        return {
            "name": group.name,
            "count": group.count,
            "holders": list(group.holders),
            "seconds": {str(name): seconds for name, seconds in self.devices.seconds(group).items()},
        }

    def _swings(self) -> dict[str, object]:
        swings, rate = self.swings.all, self.standalone_tokens_per_s
        lent = fsum(swing.lent_seconds or 0.0 for swing in swings)
        return {
            "swings": [_swing(swing, rate) for swing in swings],
            "swing_count": sum(swing.outcome == "done" for swing in swings),
            "swing_seconds": self.swings.seconds,
            "swing_share": share(self.swings.seconds, self.wall_s),
            "lent_seconds": lent,
            "lent_share": share(lent, self.wall_s),
            "lent_tokens": self.swings.lent_tokens,
            "lent_gain_seconds": self.swings.lent_tokens / rate if rate else None,
            "standalone_tokens_per_second": rate,
        }


def summarise(entries: Iterable[Entry]) -> dict[str, object]:
    """The summary of a log."""
    summary = Summary()
    for entry in entries:
        summary.apply(entry)
    return summary.as_dict()


def _distribution(found: Distribution | None) -> dict[str, object] | None:
    return None if found is None else found.as_dict()


def _swing(swing: SwingCost, rate: Number) -> dict[str, object]:
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
        **({} if swing.target == "train" else _lend(swing, rate)),
    }


def _lend(swing: SwingCost, rate: Number) -> dict[str, object]:
    """What only a lend has: what it gave, and what it cost with the way back."""
    return {
        "lent_seconds": swing.lent_seconds,
        "lent_tokens": swing.lent_tokens,
        "cost_seconds": swing.cost_seconds,
        "gain_seconds": swing.gain_seconds(rate),
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
