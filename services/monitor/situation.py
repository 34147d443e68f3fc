"""Where a run stands: its cores' states, rebuilt from the log as a service that starts anew rebuilds its own, and since when that is so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bus.core import Core
from bus.entry import Entry
from bus.events import (
    BatchFormed,
    Event,
    GenerationFinished,
    GenerationRequested,
    KillRequested,
    PolicyAttached,
    PolicyDetached,
    RolloutPaused,
    RolloutResumed,
    RunEnded,
    RunPlanned,
    SampleReady,
    ServiceLost,
    ServiceStarted,
    ServiceStopped,
    Stalled,
    StepDone,
    SwitchDone,
    TrainGranted,
    WeightUpdateRequested,
)
from bus.host import own
from services.controller.core import ControllerCore
from services.monitor.policy_history import PolicyHistory
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore

_MOVES = (SampleReady, BatchFormed, StepDone, SwitchDone, TrainGranted)
"""After one of these a `Stalled` is history."""


@dataclass
class ServiceState:
    """What the log says of a service's newest incarnation."""

    epoch: int
    state: str
    """started, stopped, `lost, restarting`, lost."""
    entry: Entry
    """Which says so."""
    detail: str = ""

    @property
    def is_here(self) -> bool:
        """It should show a sign of life."""
        return self.state == "started"


@dataclass
class Situation:
    """The state at the end of a log."""

    entries: Sequence[Entry]
    trainer: TrainerCore = field(default_factory=TrainerCore)
    rollouter: RollouterCore = field(default_factory=RollouterCore)
    controller: ControllerCore = field(default_factory=ControllerCore)
    services: dict[str, ServiceState] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    """Service -> name of the machine of its newest incarnation, of those that say it."""
    newest: dict[str, Entry] = field(default_factory=dict)
    """Kind -> its newest entry."""
    newest_of: dict[tuple[str, str], Entry] = field(default_factory=dict)
    """(kind, replica) -> the newest entry that asks this of it."""
    paused: dict[str, Entry] = field(default_factory=dict)
    """Reason -> since when nothing is started."""
    requested: dict[tuple[str, int], Entry] = field(default_factory=dict)
    """(request, attempt) -> its entry, while it has no outcome."""
    armed: dict[str, tuple[Entry, float]] = field(default_factory=dict)
    """Deadline of the controller -> (the entry since which it runs, its seconds)."""
    policies: PolicyHistory = field(default_factory=PolicyHistory)
    stalled: Entry | None = None
    ended: RunEnded | None = None
    plan: RunPlanned | None = None

    @property
    def last(self) -> Entry:
        """The newest entry."""
        return self.entries[-1]

    def entry(self, position: int) -> Entry | None:
        """The entry at a position."""
        index = position - self.entries[0].position
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def since(self, *kinds: type[Event]) -> Entry | None:
        """The newest entry of these kinds."""
        found = [self.newest[kind.kind] for kind in kinds if kind.kind in self.newest]
        return max(found, key=lambda entry: entry.position, default=None)


def situation_of(entries: Sequence[Entry]) -> Situation:
    """Reads a whole log, at least its plan."""
    found = Situation(entries)
    cores: tuple[Core, ...] = (found.trainer, found.rollouter, found.controller)
    answers = _answers(entries, {core.source for core in cores})
    for entry in entries:
        for core in cores:
            if not (entry.derived and entry.source == core.source):
                core.apply(entry)
        for answer in answers.get(entry.position, ()):
            core = next(core for core in cores if core.source == answer.source)
            core.apply(own(core, answer.event, entry.position))
        _note(found, entry)
        _arm(found, entry)
    return found


def _answers(entries: Iterable[Entry], sources: set[str]) -> dict[int, list[Entry]]:
    """Position -> what the cores decided on it: applied right after it, as their incarnations did."""
    answers: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.derived and entry.source in sources:
            answers.setdefault(entry.cause, []).append(entry)
    return answers


def _arm(found: Situation, entry: Entry) -> None:
    """Which deadlines run: armed when they are first named, and anew by a controller that starts anew."""
    if isinstance(entry.event, ServiceStarted) and entry.source == found.controller.source:
        found.armed = {}
    found.armed = {deadline.key: found.armed.get(deadline.key, (entry, deadline.seconds)) for deadline in found.controller.deadlines()}


def _note(found: Situation, entry: Entry) -> None:
    event = entry.event
    found.newest[event.kind] = entry
    found.policies.apply(entry, found.trainer.books.version)
    if isinstance(event, _MOVES):
        found.stalled = None
    match event:
        case RunPlanned():
            found.plan = event
        case GenerationRequested():
            found.requested[event.request, event.attempt] = entry
        case GenerationFinished():
            found.requested.pop((event.request, event.attempt), None)
        case WeightUpdateRequested() | KillRequested():
            found.newest_of[event.kind, event.replica] = entry
        case RolloutPaused():
            found.paused.setdefault(event.reason, entry)
        case RolloutResumed():
            found.paused.pop(event.reason, None)
        case Stalled():
            found.stalled = entry
        case RunEnded():
            found.ended = event
        case _:
            _note_service(found, entry)


def _note_service(found: Situation, entry: Entry) -> None:
    match entry.event:
        case ServiceStarted() | PolicyAttached() as event:
            if isinstance(event, ServiceStarted):
                found.hosts[entry.source] = event.host
            found.services[entry.source] = ServiceState(entry.epoch, "started", entry)
        case ServiceStopped() | PolicyDetached() as event:
            found.services[entry.source] = ServiceState(entry.epoch, "stopped", entry, event.reason)
        case ServiceLost() as event:
            known = found.services.get(event.service)
            if known is None or known.epoch <= event.epoch:
                state = "lost, restarting" if event.restarting else "lost"
                found.services[event.service] = ServiceState(event.epoch, state, entry, event.detail)
        case _:
            pass
