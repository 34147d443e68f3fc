"""The ledger: where every prompt that was taken has ended, folded from a log by itself and compared with the books that the cores keep.

SampleStarted ─▶ in flight ─▶ SampleReady ─▶ ready ─▶ BatchFormed ─▶ in a batch ─▶ StepDone ─▶ trained
                     └───────── SampleDropped ─┴──▶ dropped (failed, filtered | stale, evicted, tail)

taken = trained + dropped + ready + in a batch + in flight          anything else is a fault, with its sample and position
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from bus.entry import Entry
from bus.events import (
    BatchFormed,
    GenerationFinished,
    PromptsExhausted,
    RunEnded,
    RunPlanned,
    SampleDropped,
    SampleReady,
    SampleStarted,
    SettingChanged,
    StepDone,
    StopRequested,
    WeightsPublished,
)
from replay.ledger_books import CoresBooks
from replay.lengths import Lengths

KINDS = tuple(
    kind.kind
    for kind in (
        RunPlanned, SampleStarted, SampleReady, SampleDropped, BatchFormed, StepDone, WeightsPublished, GenerationFinished,
        PromptsExhausted, SettingChanged, StopRequested, RunEnded,
    )
)  # fmt: skip
"""The entries that the ledger reads."""

MOST_NAMED = 100
"""Prompts that were skipped, and are named."""
State = Literal["in flight", "ready", "in a batch", "trained", "dropped"]
OWNERS = {"failed": "in flight", "filtered": "in flight", "stale": "ready", "evicted": "ready", "tail": "ready"}
"""Reason of a drop -> where a sample must be: only its owner drops it."""


@dataclass(slots=True)
class Account:
    """One prompt that was taken."""

    state: State
    since: int
    """Position of the entry that brought it there."""
    num_tokens: int = 0
    was_ready: bool = False
    step: int = 0
    """That took it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What cannot be in books that balance. `sample` is None where it is of no single one."""

    position: int
    sample: int | None
    what: str

    def __str__(self) -> str:
        return f"position {self.position}{'' if self.sample is None else f', sample {self.sample}'}: {self.what}"


@dataclass(slots=True)
class Cycle:
    """What happened while `version` was the newest one, and what there was when it was over (or is now)."""

    version: int
    taken: int = 0
    ready: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    """State -> samples, at its end."""


class Ledger:
    """Fold of a whole log, from its first entry on; others than those of `KINDS` are ignored."""

    def __init__(self) -> None:
        self.plan: RunPlanned | None = None
        self.accounts: dict[int, Account] = {}
        self.taken = 0
        """SampleStarted entries."""
        self.trained = 0
        """As the steps that were done say."""
        self.dropped: dict[str, int] = {}
        """Reason -> SampleDropped entries."""
        self.repeated = 0
        """SampleReady entries of samples that were ready before: a second outcome, which every core ignores."""
        self.lengths = Lengths()
        self.ended: RunEnded | None = None
        self._cycles: list[Cycle] = []
        self._now = Cycle(0)
        self._counts: dict[State, int] = {"in flight": 0, "ready": 0, "in a batch": 0, "trained": 0, "dropped": 0}
        self._batch: BatchFormed | None = None
        self._last_step = 0
        self._found: list[Fault] = []
        self._books = CoresBooks()
        self._position = 0

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        self._position = entry.position
        self._books.apply(event)
        match event:
            case SampleStarted():
                self._start(event.sample)
            case GenerationFinished():
                self._answer(event)
            case SampleReady():
                self._ready(event)
            case SampleDropped():
                self._drop(event)
            case BatchFormed():
                self._form(event)
            case StepDone():
                self._finish(event)
            case WeightsPublished():
                self._publish(event.version)
            case RunPlanned():
                self.plan = event
            case RunEnded():
                self.ended = event
            case _:
                pass

    def count(self, state: State) -> int:
        """Samples that are there now."""
        return self._counts[state]

    @property
    def cycles(self) -> list[Cycle]:
        """One for each version that was published, in order; the last one may be going on."""
        return [*self._cycles, self._closed(self._now)]

    @property
    def skipped(self) -> tuple[int, list[int]]:
        """How many prompts were never taken though later ones were, and the first of them."""
        count = max(self.accounts, default=-1) + 1 - len(self.accounts)
        missing = (number for number in itertools.count() if number not in self.accounts)
        return count, list(itertools.islice(missing, min(count, MOST_NAMED)))

    @property
    def faults(self) -> list[Fault]:
        """Everything that keeps the books from balancing, by position."""
        count, first = self.skipped
        found = [*self._found, *(Fault(self._position, sample, "never taken, though later prompts were") for sample in first)]
        if count > len(first):
            found.append(Fault(self._position, None, f"{count} prompts were never taken, though later ones were"))
        return sorted([*found, *self._vanished(), *self._sums()], key=lambda fault: fault.position)

    @property
    def balanced(self) -> bool:
        return not self.faults

    def as_dict(self) -> dict[str, object]:
        """Everything, as plain data."""
        faults = self.faults
        return {
            "run": self.plan.run if self.plan else "",
            "ended": self.ended.reason if self.ended else "",
            "balanced": not faults,
            "faults": [{"position": fault.position, "sample": fault.sample, "what": fault.what} for fault in faults],
            "prompts_in_plan": self.plan.num_prompts if self.plan else None,
            "taken": self.taken,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "ready": self.count("ready"),
            "in_a_batch": self.count("in a batch"),
            "in_flight": self.count("in flight"),
            "skipped": self.skipped[0],
            "repeated": self.repeated,
            "lengths": self.lengths.as_dict(),
            "cycles": [
                {
                    "version": cycle.version, "taken": cycle.taken, "ready": cycle.ready, "trained": cycle.trained,
                    "dropped": cycle.dropped, "left": cycle.left,
                }
                for cycle in self.cycles
            ],
        }  # fmt: skip

    # --- what happens to a sample --------------------------------------------------------------------------------------------------

    def _start(self, sample: int) -> None:
        self.taken += 1
        self._now.taken += 1
        known = self.accounts.get(sample)
        if known is not None:
            self._fault(sample, f"taken twice: it is {known.state} since position {known.since}")
            return
        self.accounts[sample] = Account("in flight", self._position)
        self._counts["in flight"] += 1

    def _answer(self, event: GenerationFinished) -> None:
        """An answer, or a part of one; those of evaluations are of no sample."""
        number, _, _ = event.request.partition(".")
        account = self.accounts.get(int(number)) if number.isdecimal() else None
        if account is not None and account.state == "in flight":
            self.lengths.answer(int(number), event.request, event.num_tokens)

    def _ready(self, event: SampleReady) -> None:
        known = self.accounts.get(event.sample)
        if known is not None and known.was_ready:
            self.repeated += 1
            return
        self._now.ready += 1
        account = self._move(event.sample, "ready", ("in flight",))
        if account is not None:
            account.num_tokens, account.was_ready = event.num_tokens, True
            self.lengths.ready(event.sample)

    def _drop(self, event: SampleDropped) -> None:
        for counts in (self.dropped, self._now.dropped):
            counts[event.reason] = counts.get(event.reason, 0) + 1
        account = self._move(event.sample, "dropped", (OWNERS[event.reason],), f"dropped ({event.reason})")
        if account is not None:
            self.lengths.dropped(event.sample, event.reason, account.num_tokens)

    def _form(self, event: BatchFormed) -> None:
        if self._batch is not None:
            self._fault(None, f"a batch of step {event.step} is formed while that of step {self._batch.step} is not trained")
        if event.step <= self._last_step:
            self._fault(None, f"a batch of step {event.step} is formed, which is done")
        self._batch = event
        for sample in event.samples:
            account = self._move(sample, "in a batch", ("ready",), f"in the batch of step {event.step}")
            if account is not None:
                account.step = event.step

    def _finish(self, event: StepDone) -> None:
        self.trained += event.num_samples
        self._now.trained += event.num_samples
        if self._batch is None or self._batch.step != event.step:
            again = "again" if event.step <= self._last_step else "without a batch"
            self._fault(None, f"step {event.step} is done {again}: {event.num_samples} samples are counted for it")
            return
        if event.num_samples != len(self._batch.samples):
            self._fault(None, f"step {event.step} says {event.num_samples} samples, its batch has {len(self._batch.samples)}")
        for sample in self._batch.samples:
            account = self._move(sample, "trained", ("in a batch",))
            if account is not None:
                self.lengths.trained(account.num_tokens)
        self._batch, self._last_step = None, event.step

    def _publish(self, version: int) -> None:
        if version > self._now.version:
            self._cycles.append(self._closed(self._now))
            self._now = Cycle(version)

    def _closed(self, cycle: Cycle) -> Cycle:
        cycle.left = {state: self._counts[state] for state in ("in flight", "ready", "in a batch")}
        return cycle

    def _move(self, sample: int, to: State, allowed: Iterable[str], words: str = "") -> Account | None:
        """Brings a sample from one of the `allowed` states to another; None, and a fault, when it is not there."""
        account = self.accounts.get(sample)
        if account is None:
            self._fault(sample, f"{words or to} without having been taken")
            return None
        if account.state not in allowed:
            by = f" by step {account.step}" if account.step else ""
            self._fault(sample, f"{words or to}, but it is {account.state}{by} since position {account.since}")
            return None
        self._counts[account.state] -= 1
        self._counts[to] += 1
        account.state, account.since = to, self._position
        return account

    def _fault(self, sample: int | None, what: str) -> None:
        self._found.append(Fault(self._position, sample, what))

    # --- what must hold at the end -------------------------------------------------------------------------------------------------

    def _vanished(self) -> list[Fault]:
        """When the prompts have come to their end, every one of them has."""
        if self.ended is None or self.ended.reason != "prompts_exhausted":
            return []
        left = [(sample, account) for sample, account in self.accounts.items() if account.state not in ("trained", "dropped")]
        return [Fault(account.since, sample, f"vanished: the prompts are exhausted, and it is {account.state}") for sample, account in left]

    def _sums(self) -> list[Fault]:
        """The counts against each other, and against what the cores count."""
        if self._found:
            return []
        ends = self.trained + sum(self.dropped.values()) + sum(self.count(state) for state in ("ready", "in a batch", "in flight"))
        faults = [] if ends == self.taken else [f"{self.taken} prompts were taken, {ends} are accounted for"]
        states: dict[str, set[int]] = {"in flight": set(), "ready": set()}
        for sample, account in self.accounts.items():
            if account.state in states:
                states[account.state].add(sample)
        faults += self._books.differences(
            trained=self.trained, dropped=self.dropped, in_flight=states["in flight"], ready=states["ready"],
            batch=() if self._batch is None else self._batch.samples,
        )  # fmt: skip
        return [Fault(self._position, None, what) for what in faults]
