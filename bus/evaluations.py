"""Evaluations: which version is due, which one is evaluated now, and on which replica. Rollouter, controller and trainer share this fold.

    WeightsPublished(v), v is due ──▶ its turn ──EvalRequested(v, replica)──▶ pinned ──EvalDone(v)──▶ done
              │                          ▲   ▲                                   │
              │ another one runs         │   └─ replica lost or failed, routes cut, weights published anew
              └────────▶ waits ──EvalDone┘
                           └─ a newer one is due ▶ superseded ▶ EvalDone(v) of no prompt

One version is evaluated at a time and at most one waits: the newest, for what is newer says more. The rollouter may begin one before it
reads that this is superseded: then its word goes, and weights are needed until it has said what became of them. A validation prompt is no
sample: in requests it has a number below 0, so that no fold can take it for one.
"""

from __future__ import annotations

from bus.core import Deadline
from bus.entry import Entry
from bus.events import (
    DeadlineMissed,
    EvalDone,
    EvalRequested,
    ReplicaFailed,
    ReplicaLost,
    RoutesCut,
    RunPlanned,
    ServiceStarted,
    SettingChanged,
    WeightsPublished,
)
from bus.settings import Settings
from bus.sources import REPLICA_PREFIX


def number_of(prompt: int) -> int:
    """What stands for a validation prompt where samples have their number."""
    return -1 - prompt


def prompt_of(number: int) -> int:
    """The inverse of `number_of`."""
    return -1 - number


class Evaluations:
    """Fold of the evaluations; feed it every entry once, in order. `settings`: a fold that others hold, too."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.current: WeightsPublished | None = None
        """What is evaluated now."""
        self.waiting: WeightsPublished | None = None
        """What is evaluated next."""
        self.superseded: dict[int, WeightsPublished] = {}
        """Version -> what will not be evaluated, unless that has begun already, and whose EvalDone is due."""
        self.pinned: EvalRequested | None = None
        """The replica that evaluates `current`."""
        self.timed_out = False
        """The deadline of `current` has passed."""
        self._newest = -1

    @property
    def plan(self) -> RunPlanned | None:
        """As it is now."""
        return self.settings.plan

    @property
    def pending(self) -> bool:
        """An EvalDone is due, now or later."""
        return self.current is not None or bool(self.superseded)

    @property
    def needed_uris(self) -> set[str]:
        """Publications that may still have to be loaded."""
        turns = (self.current, self.waiting, *self.superseded.values())
        return {publication.uri for publication in turns if publication is not None}

    def is_due(self, version: int) -> bool:
        """This version is to be evaluated."""
        plan = self.plan
        if plan is None or plan.num_validation == 0:
            return False
        if version == 0:
            return plan.eval_before_train
        return plan.eval_every_versions > 0 and version % plan.eval_every_versions == 0

    def deadlines(self) -> list[Deadline]:
        """When the evaluation ends at the latest."""
        if self.current is None or self.timed_out or self.plan is None:
            return []
        return [Deadline(_key(self.current.version), self.plan.eval_timeout_s)]

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event, current = entry.event, self.current
        match event:
            case RunPlanned() | SettingChanged():
                self.settings.apply(event)  # where somebody else has done so already, it is the same again
            case WeightsPublished():
                self._publish(event)
            case EvalRequested():
                self._pin(event)
            case EvalDone():
                self._finish(event.version)
            case DeadlineMissed() if current is not None and event.key == _key(current.version):
                self.timed_out = True
            case _:
                if self.pinned is not None and self._unpins(entry, self.pinned):
                    self.pinned = None

    def _publish(self, event: WeightsPublished) -> None:
        if self.current is not None and event.version == self.current.version:
            self.current, self.pinned = event, None
        elif self.waiting is not None and event.version == self.waiting.version:
            self.waiting = event
        elif event.version in self.superseded:
            self.superseded[event.version] = event
        elif event.version > self._newest:
            self._newest = event.version
            if self.is_due(event.version):
                self._add(event)

    def _add(self, event: WeightsPublished) -> None:
        if self.current is None:
            self.current = event
            return
        if self.waiting is not None:
            self.superseded[self.waiting.version] = self.waiting
        self.waiting = event

    def _pin(self, event: EvalRequested) -> None:
        begun = self.superseded.pop(event.version, None)
        if begun is not None:
            if self.waiting is None:
                self.waiting = self.current
            elif self.current is not None:
                self.superseded[self.current.version] = self.current
            self.current, self.timed_out = begun, False
        if self.current is not None and event.version == self.current.version:
            self.pinned = event

    def _finish(self, version: int) -> None:
        self.superseded.pop(version, None)
        if self.current is not None and self.current.version == version:
            self.current, self.waiting = self.waiting, None
            self.pinned = None
            self.timed_out = False

    def _unpins(self, entry: Entry, pinned: EvalRequested) -> bool:
        """The pinned incarnation is gone, of no use, or a hybrid that goes to sleep."""
        event = entry.event
        match event:
            case ReplicaLost():
                return event.replica == pinned.replica and event.epoch >= pinned.epoch
            case ReplicaFailed():
                return event.replica == pinned.replica and entry.epoch == pinned.epoch
            case ServiceStarted():
                return entry.source == REPLICA_PREFIX + pinned.replica and entry.epoch > pinned.epoch
            case RoutesCut():
                return self.plan is not None and pinned.replica in self.plan.hybrid
            case _:
                return False


def _key(version: int) -> str:
    return f"eval:{version}"
