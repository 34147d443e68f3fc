"""The part of a service that acts: tails the log, lets the host decide, has what is outstanding performed, and appends the outcomes.

    log ──(reader thread)──▶ mailbox ◀──(worker threads)── outcomes as facts
                               │
                     main thread: host.take(entries) ▸ performer.look() ▸ append facts ▸ watch deadlines

One thread owns the core and the appending client, so facts and decisions are one queue and one append is in flight. Running and recovering
are one code path: what is performed is what the core lists as outstanding, never merely what was seen to go by.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, Protocol

from bus.core import Core
from bus.entry import Draft, Entry
from bus.errors import GapError
from bus.events import DeadlineMissed, Event, PolicyAttached, RunEnded, ServiceStarted, ServiceStopped
from bus.history import History
from bus.host import Host, rebuild_in_order
from bus.log import Log
from bus.requests import ANSWERING
from bus.snapshot_table import core_code
from bus.trimming import Progress
from services.alarms import Alarms
from services.context import ServiceContext
from services.snapshots import Snapshots
from services.telling import Telling

logger = logging.getLogger(__name__)

READ_LIMIT = 512
BLOCK_MS = 1_000
GATHER_S = 0.004
"""How long a reader lets entries gather after it has got some."""
GATHER_MANY_S = 0.016
MANY = 16
"""After so many it waits longer: under such a load each portion is an exchange, and what follows on it an append, that others wait for."""
MAILBOX_SIZE = 256
"""Batches of entries and outcomes that may wait; a reader that is ahead blocks."""
WATCH_PAUSE = 20
"""So many times as long as a look at the deadlines takes none is taken."""
SAY_EVERY_S = 5.0
"""How often a long recovery says how far it is."""

Facts = Sequence[tuple[Event, int]]
"""Outcomes, each with the position of the entry that led to it (0: the newest decision it follows from)."""
Mail = list[Entry] | tuple[Literal["facts"], Facts] | BaseException


def gather_s(count: int) -> float:
    """How long entries gather after a reader has got so many."""
    return GATHER_S if count < MANY else GATHER_MANY_S


class Terminated(Exception):
    """The process was asked to end (SIGTERM)."""


class Leaving(Exception):
    """The service ends by itself, before the run does; `last_word` says so in the log."""

    def __init__(self, last_word: Event) -> None:
        super().__init__(repr(last_word))
        self.last_word = last_word


@dataclass(frozen=True, slots=True)
class Caught:
    """A core as it is at its incarnation's start, and what its host remembers; None: it is fresh, and must be rebuilt."""

    core: Core
    decided_at: dict[str, int] | None
    ended: bool
    """The run is over."""


class Follower(Protocol):
    """Has followed the log with the core before the incarnation began."""

    def caught(self, own_start: int) -> Caught:
        """The core with all entries up to `own_start`, where the incarnation begins."""


class Performer(Protocol):
    """Performs what a core lists as outstanding. Called from the shell's main thread; posts outcomes from wherever it likes."""

    def recovered(self, shell: Shell) -> None:
        """The core's state is rebuilt: what there is to know of the past is in it. `shell.post` may be used from here on."""

    def prepare(self, events: Sequence[Event]) -> None:
        """These decisions are about to be appended: write what they name."""

    def look(self, entries: Sequence[Entry]) -> None:
        """The core has taken these (none: it has just recovered): begin what is outstanding and not begun yet."""

    def durable(self, position: int) -> int:
        """Of the entries up to `position`, which the core has taken: up to where none is needed any more, even by a successor."""

    def close(self) -> None:
        """End threads and processes."""


class Idle:
    """The performer of a service that only decides."""

    def recovered(self, shell: Shell) -> None: ...

    def prepare(self, events: Sequence[Event]) -> None: ...

    def look(self, entries: Sequence[Entry]) -> None: ...

    def durable(self, position: int) -> int:
        return position

    def close(self) -> None: ...


class Shell:
    """Runs one incarnation of a service with a core, until the run has ended."""

    def __init__(
        self,
        context: ServiceContext,
        core: Core,
        performer: Performer,
        attached: PolicyAttached | None = None,
        follower: Follower | None = None,
    ) -> None:
        self.context = context
        self.core = core
        self._follower = follower
        self._performer = performer
        self._first_word: ServiceStarted | PolicyAttached = attached or context.started()
        self._mailbox: queue.Queue[Mail] = queue.Queue(MAILBOX_SIZE)
        self._ending = threading.Event()
        self._ended = False
        self._alarms = Alarms()
        self._watch_at = 0.0
        self._host: Host | None = None
        self._progress = Progress(context.url, context.run, core.source)
        self._snapshots = Snapshots(context, core.source, core_code(context.code, attached))
        self.position = 0

    @property
    def host(self) -> Host:
        """Drives the core; there once the service has recovered."""
        assert self._host is not None
        return self._host

    def post(self, facts: Facts) -> None:
        """Hands outcomes to the main thread, which appends them. From any thread."""
        self._mailbox.put(("facts", facts))

    def fail(self, error: BaseException) -> None:
        """Ends the service with an error that happened in another thread."""
        self._mailbox.put(error)

    def run(self) -> None:
        """Starts, recovers, and serves until RunEnded. Raises Fenced when a newer incarnation has taken over."""
        with closing(self.context.open_log()) as log:
            self._run(log)

    def _run(self, log: Log) -> None:
        draft = Draft(self._first_word, derived=False, cause=0, at=time.time_ns())
        attached = log.attach(self.core.source, draft, self.context.spec.after)
        # Of requests and answers, nine in ten entries, a policy hears nothing.
        ignores = ANSWERING if isinstance(self._first_word, PolicyAttached) else frozenset()
        self._host = Host(self.core, log, attached.producer, time.time_ns, self._performer.prepare, ignores)
        with self.context.alive(attached.producer.epoch):
            last_word: Event = ServiceStopped(reason="the run has ended")
            try:
                self._recover(attached.position)
                threading.Thread(target=self._read, name="reader", daemon=True).start()
                self._serve()
            except Terminated:
                last_word = ServiceStopped(reason="terminated")
            except Leaving as leaving:
                last_word = leaving.last_word
            finally:
                self._ending.set()
                self._performer.close()
                self._snapshots.close()
            self._stop(last_word)

    def _recover(self, own_start: int) -> None:
        """Rebuilds the state from the log up to this incarnation's start, then decides with that as cause."""
        began = time.monotonic()
        after = own_start if self._has_followed(own_start) else self._rebuild(own_start)
        if self.position != own_start:
            raise GapError(f"the log was read up to {self.position}, this incarnation started at {own_start}: entries are missing")
        logger.info("recovered: position=%d seconds=%.3f epoch=%d", self.position, time.monotonic() - began, self.host.producer.epoch)
        self._snapshots.begin(self.host.producer.epoch, after)
        self._performer.recovered(self)
        self.host.decide(self.position)
        self._performer.look(())

    def _has_followed(self, own_start: int) -> bool:
        """Somebody has followed the log up to here with the core already."""
        if self._follower is None:
            return False
        caught = self._follower.caught(own_start)
        if caught.decided_at is not None:
            self.host.decided_at.update(caught.decided_at)
            self.position, self._ended = own_start, caught.ended
            return True
        self.core = self.host.core = caught.core
        return False

    def _rebuild(self, own_start: int) -> int:
        """Reads the log; returns the position of the snapshot that this began with, 0 without one."""
        with self.context.open_history() as history, self.context.open_history() as ahead:
            after = self._restore(history, own_start)
            entries = self._passing(history.entries(after, own_start), own_start)
            decisions = self._noting(ahead.decisions(self.core.source, after, own_start))
            self.position = rebuild_in_order(self.core, entries, decisions, after)
        return after

    def _restore(self, history: History, own_start: int) -> int:
        """Position of the snapshot that the core goes on from; 0: there is none."""
        snapshot = self._snapshots.restore(self.core, history, own_start)
        if snapshot is None:
            return 0
        self.host.decided_at.update(snapshot.decided_at or {})
        return snapshot.position

    def _passing(self, entries: Iterable[Entry], last: int) -> Iterator[Entry]:
        """Says how far it is, once in a while."""
        telling = Telling(SAY_EVERY_S, SAY_EVERY_S)
        for entry in entries:
            self._ended = self._ended or isinstance(entry.event, RunEnded)
            if telling.is_due():
                logger.info("recovering: position=%d of=%d", entry.position, last)
            yield entry

    def _noting(self, decisions: Iterable[Entry]) -> Iterator[Entry]:
        for entry in decisions:
            self.host.decided_at[entry.event.kind] = entry.position
            yield entry

    def _read(self) -> None:
        try:
            position = self.position
            with self.context.open_history() as history:
                while not self._ending.is_set():
                    entries = history.read(position, READ_LIMIT, BLOCK_MS)
                    if entries:
                        position = entries[-1].position
                        self._mailbox.put(entries)
                        # Under load a few entries at a time come at once: a wake-up each would cost more than what they say.
                        time.sleep(gather_s(len(entries)))
        except BaseException as error:  # noqa: BLE001  (the main thread must hear of it, whatever it is)
            self.fail(error)

    def _serve(self) -> None:
        while not self._ended:
            self._watch_deadlines()
            self._progress.tell(self._performer.durable(self.position))
            try:
                mail = self._mailbox.get(timeout=self._patience())
            except queue.Empty:
                continue
            self._take(mail)

    def _take(self, mail: Mail) -> None:
        if isinstance(mail, BaseException):
            raise mail
        if isinstance(mail, tuple):
            self.host.append_facts(mail[1])
            return
        self.host.take(mail)
        self._snapshots.look(self.core, mail, self.host.decided_at)
        self.position = mail[-1].position
        self._ended = self._ended or any(isinstance(entry.event, RunEnded) for entry in mail)
        self._performer.look(mail)

    def _watch_deadlines(self) -> None:
        """Arms what the core names, disarms what it no longer names, and says what has passed. Of a thousand replicas each has some."""
        now = time.monotonic()
        if now < self._watch_at:
            return
        missed = self._alarms.missed(self.core.deadlines(), now)
        self._watch_at = now + WATCH_PAUSE * (time.monotonic() - now)
        if missed:
            self.host.append_facts([(DeadlineMissed(key=late.key, seconds=late.seconds), self.position) for late in missed])

    def _patience(self) -> float:
        now = time.monotonic()
        return min(1.0, max(0.001, self._alarms.next_at(now + 1.0) - now))

    def _stop(self, last_word: Event) -> None:
        """Appends what was being performed when the end came (the last checkpoint), then the last word."""
        facts: list[tuple[Event, int]] = []
        while not self._mailbox.empty():
            mail = self._mailbox.get()
            facts += mail[1] if isinstance(mail, tuple) else []
        self.host.append_facts([*facts, (last_word, self.position)])
        self._progress.close(self._performer.durable(self.position))
