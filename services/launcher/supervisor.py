"""Looks after the services of a run from its plan to its end.

    spawn ▸ [ read the log ▸ kill what KillRequested names ▸ verified exits: ServiceLost ▸ restart, later ]* ▸ RunEnded ▸ end leftovers

    Ctrl-C ─▶ StopRequested ─▶ the cores end the run in order        again, or `stop_s` later ─▶ every process group is killed

Everything happens in the main thread: one append in flight, and processes that end with the thread that started them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol

from bus.entry import Draft, Entry, Producer
from bus.events import Event, KillRequested, RunEnded, RunPlanned, ServiceLost, ServiceStarted, StopRequested
from bus.log import Log
from bus.sources import POLICY
from services.config import SupervisorConfig
from services.exit_codes import FENCED, MISTAKEN
from services.launcher.children import Child, new_token
from services.launcher.keeper import Keeper
from services.launcher.protocol import Handle, Launcher, RunPlace, Say, ServiceSpec
from services.launcher.restarts import Restarts
from services.launcher.waits import Waits
from services.policy.roster import Roster

logger = logging.getLogger(__name__)

SUPERVISOR = Producer("supervisor", 0)
READ_LIMIT = 512
BLOCK_MS = 100
"""How long an exit may go unnoticed while the log is silent."""
GATHER_S = 0.02
"""How long entries may gather: nothing here is in a hurry, and the services need the cores."""
POLL_S = 0.02
TERM_S = 5.0
"""How long a leftover may take to end after SIGTERM."""
KILL_S = 10.0
"""How long it may take to be gone after SIGKILL."""
IN_ORDER = ("completed", "prompts_exhausted", "stopped")
"""Reasons of RunEnded that are no failure."""
LOG_LOST = "log_lost"
"""The server is gone, or its log is not the one that this run had."""
NO_END = (LOG_LOST, "killed", "not_stopped", "not_killable", "controller_lost")
"""Reasons of an outcome without a RunEnded."""

Watch = Callable[[Sequence[Entry]], None]


class Reading(Protocol):
    """What is read of a `bus.log.Log`."""

    def read(self, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        """Entries after a position."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `reason` is that of RunEnded, or `controller_lost`, `not_stopped`, …: then the log has no RunEnded."""

    reason: str
    detail: str = ""
    leftovers: tuple[str, ...] = ()
    """Services that did not end by themselves."""

    @property
    def can_resume(self) -> bool:
        """The log has no RunEnded, so the run is not over."""
        return self.reason in NO_END

    @property
    def in_order(self) -> bool:
        """The run did what was asked of it."""
        return self.reason in IN_ORDER


@dataclass
class Supervisor:
    """Runs one run. `watch` gets every entry; `clock` is monotonic, in seconds; `say` tells the user something.

    Within `with`: at its end nobody is left behind.
    """

    place: RunPlace
    log: Log
    launcher: Launcher
    config: SupervisorConfig
    watch: Watch
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], int] = time.time_ns
    say: Say = logger.warning
    roster: Roster = field(default_factory=Roster)
    """The policies that the run has had so far."""
    children: dict[str, Child] = field(default_factory=dict)
    """All services but the policies."""
    reader: Reading | None = None
    """Reads the log for it, also what was trimmed; None: `log` does."""
    position: int = 0
    """Up to here the log was read: a run that goes on begins behind what it had."""
    ended: RunEnded | None = None
    stop_asked: str = ""
    """Why the run is to end in order; set by whoever asks, also by a signal handler, and heard by the loop."""
    _stop_by: float | None = None
    _failure: Outcome | None = None

    def __post_init__(self) -> None:
        self.policies = Keeper(
            self.place, self.launcher, self.config, self.roster, lambda event, cause, _: self._append(event, cause), self._drain, self.clock
        )
        self._waits = Waits(self.say)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill_all()

    def run(self, services: Sequence[ServiceSpec]) -> Outcome:
        """Starts the services and returns when the run has ended and they have. Raises LogError."""
        for spec in services:
            if spec.service == POLICY:
                self.policies.begin()
                continue
            self.children[spec.source] = Child(spec, Restarts(self.config))
            self._spawn(self.children[spec.source])
        while self.ended is None and self._failure is None:
            if self._read(BLOCK_MS):
                time.sleep(GATHER_S)
            self._look_after_children()
            self.policies.look()
            self._waits.look(self._running(), self.clock())
            self._stop_if_asked()
        if self.ended is None:
            assert self._failure is not None
            return self._failure
        return Outcome(self.ended.reason, self.ended.detail, self._finish())

    def kill_all(self) -> list[str]:
        """Kills every service that runs, with its group, and waits until they are gone; returns those that are not."""
        killed = [source for source, handle in self._running() if handle.kill()]
        if killed:
            self._wait_for_exits(KILL_S)
        return [source for source, _ in self._running()]

    def _stop_if_asked(self) -> None:
        if not self.stop_asked or self.ended is not None:
            return
        if self._stop_by is None:
            self._stop_by = self.clock() + self.config.stop_s
            self._append(StopRequested(reason=self.stop_asked), 0)
        elif self.clock() > self._stop_by:
            self._failure = Outcome("not_stopped", f"asked to stop, it did not end within {self.config.stop_s:g} s (supervisor.stop_s)")

    # --- the log -----------------------------------------------------------------------------------------------------------------

    def _read(self, block_ms: int) -> bool:
        entries = (self.reader or self.log).read(self.position, READ_LIMIT, block_ms)
        for entry in entries:
            self.position = entry.position
            self._take(entry)
        if entries:
            self.watch(entries)
        return bool(entries)

    def _drain(self) -> None:
        while self._read(0):
            pass

    def _take(self, entry: Entry) -> None:
        self.policies.take(entry)
        event = entry.event
        match event:
            case ServiceStarted():
                self._attach(entry, event.token)
            case KillRequested():
                self._kill(event, entry.position)
            case RunEnded():
                self.ended = event
            case _:
                pass

    def _attach(self, entry: Entry, token: str) -> None:
        """An incarnation said its first word: is it one of ours?"""
        child = self.children.get(entry.source)
        if child is not None and child.handle is not None and token == child.token:
            child.epoch, child.cause = entry.epoch, entry.position

    def _kill(self, event: KillRequested, position: int) -> None:
        child = self.children.get(ServiceSpec("replica", event.replica).source)
        if child is not None and child.handle is not None and child.epoch == event.epoch:
            logger.warning("killing: service=%s epoch=%d reason=%s", child.spec.source, event.epoch, event.reason)
            child.cause = position
            if not child.handle.kill():
                self._failure = Outcome("not_killable", f"{child.spec.source} must be killed ({event.reason}): run it without --in-process")

    def _append(self, event: Event, cause: int) -> None:
        self.log.append(SUPERVISOR, [Draft(event, derived=False, cause=cause, at=self.wall_clock())])

    # --- the services ------------------------------------------------------------------------------------------------------------

    def _spawn(self, child: Child) -> None:
        token = new_token()
        child.spawned(self.launcher.spawn(replace(child.spec, token=token)), self.clock(), token)

    def _look_after_children(self) -> None:
        for child in self.children.values():
            handle = child.handle
            code = handle.poll() if handle is not None else None
            if handle is not None and code is not None and self.ended is None:
                self._lose(child, handle, code)
            elif handle is not None and not child.epoch and handle.waits_for():
                child.spawned_at = self.clock()  # it does not live yet
            elif child.due_at is not None and child.due_at <= self.clock() and self.ended is None:
                self._spawn(child)

    def _lose(self, child: Child, handle: Handle, code: int) -> None:
        """An exit, verified: which incarnation it was is in the log, perhaps not yet read; whether the run had ended, too."""
        self._drain()
        if self.ended is not None:
            return
        child.handle = None
        source = child.spec.source
        if code == FENCED:
            logger.warning("replaced by another incarnation, which is not ours: service=%s", source)
            return
        delay = None if code == MISTAKEN else child.restarts.delay_s(self.clock() - child.spawned_at)
        detail = handle.how_it_ended()
        logger.warning("service ended: service=%s epoch=%d detail=%s restart_in_s=%s", source, child.epoch, detail, delay)
        self._append(ServiceLost(service=source, epoch=child.epoch, restarting=delay is not None, detail=detail), child.cause)
        if delay is not None:
            child.due_at = self.clock() + delay
        elif source == "controller":
            self._failure = Outcome("controller_lost", f"the controller cannot be restarted, nobody can end the run in order: {detail}")

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def _finish(self) -> tuple[str, ...]:
        """Waits for the services to end by themselves, then ends those that do not; returns these."""
        deadline = self.clock() + self.config.grace_s
        while self._running() and self.clock() < deadline:
            self._read(BLOCK_MS)
        self._drain()
        leftovers = self._running()
        for source, handle in leftovers:
            logger.warning("did not end by itself: service=%s grace_s=%g", source, self.config.grace_s)
            handle.terminate()
        if leftovers:
            self._wait_for_exits(TERM_S)
        return tuple(source for source, _ in leftovers)

    def _running(self) -> list[tuple[str, Handle]]:
        handles = [(source, child.handle) for source, child in self.children.items()]
        running = [(source, handle) for source, handle in handles if handle is not None and handle.poll() is None]
        return [*running, *self.policies.running()]

    def _wait_for_exits(self, patience_s: float) -> None:
        deadline = self.clock() + patience_s
        while self._running() and self.clock() < deadline:
            time.sleep(POLL_S)


def services_of(plan: RunPlanned) -> list[ServiceSpec]:
    """What a run consists of, in the order in which it is started."""
    replicas = [ServiceSpec("replica", name) for name in plan.standalone + plan.hybrid]
    return [*(ServiceSpec(service) for service in ("archiver", "trainer", "rollouter", "controller", "policy")), *replicas]
