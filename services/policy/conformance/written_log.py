"""A log that is written entry by entry, with a policy on it that takes in each as soon as it is there, and answers."""

from __future__ import annotations

from bus.core import Core
from bus.entry import Draft, Entry, role_of
from bus.events import Event, PolicyAttached, RunPlanned, ServiceStarted, SwitchRequested
from bus.host import Host, rebuild
from bus.memory_log import MemoryLog, MemoryStore
from policies.view import ScheduleView
from services.policy.core import SOURCE

SECOND = 1_000_000_000
CLOCKS_S = {"trainer": 0, "rollouter": 7_200, "controller": -3_600, "replica": 1_800, "policy": 900, "operator": 60, "supervisor": 30}
"""Each service has a clock of its own, as on a cluster: whoever compares times of two of them is wrong by hours."""


class WrittenLog:
    """The log, and what can be read off it: `view`, the answers of the policy, and what else it wants."""

    def __init__(self, plan: RunPlanned) -> None:
        self.view = ScheduleView()
        self.asleep = False
        """The policy is slow just now: it takes in nothing."""
        self.answers: dict[int, SwitchRequested] = {}
        """Boundary -> the answer."""
        self._store = MemoryStore.create(plan, at=0)
        self._host: Host | None = None
        self._from = 0
        """Position after which the policy in charge takes entries in."""
        self._delivered = 0
        self._taken = 0
        self._now = 0
        self._epochs: dict[str, int] = {}
        self._extra: tuple[int, SwitchRequested] | None = None
        self._deliver()

    @property
    def entries(self) -> list[Entry]:
        """All of it."""
        return self._store.entries

    @property
    def in_charge(self) -> Core | None:
        """Who answers."""
        return None if self._host is None else self._host.core

    def epoch(self, source: str) -> int:
        """Of the present incarnation."""
        return self._epochs.get(source, 0)

    def pass_seconds(self, seconds: float) -> None:
        """All clocks go on."""
        self._now += round(seconds * SECOND)

    def start(self, source: str, started: ServiceStarted) -> None:
        """A new incarnation of a service."""
        self._epochs[source] = self.epoch(source) + 1
        self.write(started, source)

    def write(self, event: Event, source: str = "") -> None:
        """Appends what a service (unless it is said which: the one that may) says; the policy answers."""
        emitters = event.emitted_by()
        source = source or (emitters[0] if emitters else "supervisor")
        at = self._now + CLOCKS_S[role_of(source)] * SECOND
        self._store.write(source, self.epoch(source), [Draft(event, derived=False, cause=len(self.entries), at=at)])
        self._deliver()

    def attach(self, core: Core, attached: PolicyAttached) -> None:
        """Another policy is in charge, as after a crash or a swap."""
        log, self._host = MemoryLog(self._store), None
        start = log.attach(SOURCE, Draft(attached, derived=False, cause=0, at=self._now))
        self._deliver()
        rebuild(core, self.entries)
        self._host, self._from = Host(core, log, start.producer, lambda: self._now), start.position
        self._taken = self._delivered
        self._host.decide(start.position)
        self._deliver()

    def wake_up(self) -> Entry:
        """The slow policy takes in what it has missed; returns the newest entry."""
        self.asleep = False
        self._catch_up()
        self._deliver()
        return self.entries[-1]

    def take_extra(self) -> tuple[int, SwitchRequested] | None:
        """Position and text of what the policy wants in mid-cycle and nobody has answered yet."""
        extra, self._extra = self._extra, None
        return extra

    def _deliver(self) -> None:
        while self._delivered < len(self.entries):
            entry = self.entries[self._delivered]
            self._delivered += 1
            self.view.apply(entry)
            self._note(entry)
            self._catch_up()

    def _catch_up(self) -> None:
        while self._host is not None and not self.asleep and self._taken < self._delivered:
            entry = self.entries[self._taken]
            self._taken += 1
            if entry.position > self._from:
                self._host.take([entry])

    def _note(self, entry: Entry) -> None:
        match entry.event:
            case SwitchRequested(answers=int(version)) as event:
                self.answers.setdefault(version, event)
            case SwitchRequested(answers=None, amends=None) as event:
                self._extra = (entry.position, event)
            case _:
                pass
