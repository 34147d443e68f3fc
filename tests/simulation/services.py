"""Processes with a core: the real host around it, and a scripted shell that performs what is outstanding, some time later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus.core import Core, Request
from bus.entry import Draft
from bus.events import (
    BlobRef,
    DeadlineMissed,
    EvalScored,
    Event,
    PolicyAttached,
    SampleDropped,
    SampleReady,
    ServiceStarted,
)
from bus.host import Host, rebuild, rebuild_in_order
from bus.log import WHATEVER
from bus.snapshot import freeze, thaw_into
from bus.snapshot_table import core_code
from services.rollouter.core import RollouterCore, Score
from services.rollouter.evaluation import ScoreEvaluation

if TYPE_CHECKING:
    from tests.simulation.world import World

Facts = list[tuple[Event, int]]
CODE, OTHER_CODE = "code-a", "code-b"
SNAPSHOT_EVERY = 16
"""Entries between two places where a service that stops there leaves a snapshot."""


class SimService:
    """One incarnation of a service. `started` is its first word, which allocates its epoch."""

    def __init__(self, world: World, core: Core, started: ServiceStarted | PolicyAttached) -> None:
        self.world = world
        self.core = core
        self.source = core.source
        self.alive = True
        self.random = world.random
        self.log = world.client(self)
        self.node = world.nodes.place(self.source, hybrid=False)
        self._started = (
            started.model_copy(update={"machine": world.nodes.name(self.node)}) if isinstance(started, ServiceStarted) else started
        )
        self.after = WHATEVER
        """The epoch that it may follow."""
        self._doing: dict[str, None] = {}
        self.position = 0
        self.host: Host | None = None

    def start(self) -> None:
        """Fences the predecessor, reads the log up to its own start, rebuilds, decides with it as cause."""
        attached = self.log.attach(self.source, Draft(self._started, derived=False, cause=0, at=self.world.clock()), self.after)
        self.world.announce(self, attached.producer.epoch)
        self.position = self._recover(attached.position)
        assert self.position == attached.position
        self.host = Host(self.core, self.log, attached.producer, self.world.clock)
        self.host.decide(self.position)

    def _recover(self, last: int) -> int:
        """Every other time from the newest snapshot of the same code, else from the beginning."""
        position, data = self.world.snapshots.get(self._code, (0, b"")) if last % 2 == 0 else (0, b"")
        entries = self.log.read(0, last)
        if not position:
            return rebuild(self.core, entries)
        thaw_into(self.core, data)
        decisions = [entry for entry in entries if entry.derived and entry.source == self.source and entry.cause > position]
        return rebuild_in_order(self.core, entries[position:], decisions, position)

    @property
    def _code(self) -> tuple[str, str]:
        started = self._started
        return self.source, core_code(started.code, started if isinstance(started, PolicyAttached) else None)

    @property
    def epoch(self) -> int:
        assert self.host is not None
        return self.host.producer.epoch

    def read(self) -> None:
        """Takes one to three entries, and leaves a snapshot now and then, if there will be crashes."""
        assert self.host is not None
        entries = self.log.read(self.position, self.random.randint(1, 3))
        self.position = entries[-1].position
        self.host.take(entries)
        if self.position % SNAPSHOT_EVERY == 0 and self.world.faults.crashes:
            self.world.snapshots[self._code] = (self.position, freeze(self.core))

    def to_do(self) -> list[Request]:
        """What is outstanding and not performed by this incarnation yet."""
        outstanding = self.core.outstanding()
        keys = {request.key for request in outstanding}
        self._doing = {key: None for key in self._doing if key in keys}
        return [request for request in outstanding if request.key not in self._doing]

    def perform(self, request: Request) -> None:
        """Performs one and appends its outcome."""
        assert self.host is not None
        self._doing[request.key] = None
        facts = self.outcome(request)
        if facts:
            self.host.append_facts(facts)

    def outcome(self, request: Request) -> Facts:
        """What the world answers."""
        raise NotImplementedError(request)


class SimPolicy(SimService):
    """A policy: nothing is ever outstanding."""


class SimController(SimService):
    """Its shell watches deadlines."""

    def miss(self, key: str, seconds: float) -> None:
        """A deadline fires."""
        assert self.host is not None
        self.host.append_facts([(DeadlineMissed(key=key, seconds=seconds), self.position)])


class SimRollouter(SimService):
    """Its shell scores."""

    def outcome(self, request: Request) -> Facts:
        if isinstance(request, ScoreEvaluation):
            return self._score(request)
        assert isinstance(request, Score)
        assert isinstance(self.core, RollouterCore)
        assert all(answer.done and answer.blob is not None for answer in request.answers), "scored before it was complete"
        faults = self.world.faults
        if self.random.random() < faults.reward_fails:
            return [(SampleDropped(sample=request.sample, reason="failed", detail="reward raised"), request.cause)]
        if self.random.random() < faults.filtered:
            return [(SampleDropped(sample=request.sample, reason="filtered"), request.cause)]
        spans = [span for answer in request.answers for span in answer.spans]
        versions = [version for version, _ in spans] or [self.core.books.version]
        ready = SampleReady(
            sample=request.sample,
            num_tokens=sum(answer.num_tokens for answer in request.answers),
            oldest_version=min(versions),
            newest_version=max(versions),
            mean_reward=0.5,
            blob=BlobRef(name=f"sample:{request.sample}", num_bytes=1, digest="0"),
        )
        facts: Facts = [(ready, request.cause)]
        if self.random.random() < faults.duplicate:
            facts.append((ready, request.cause))
        return facts

    def _score(self, request: ScoreEvaluation) -> Facts:
        assert all(answer.done and answer.blob is not None for answer in request.answers), "scored before it was complete"
        failed = self.random.random() < self.world.faults.reward_fails
        scored = EvalScored(
            version=request.version,
            prompt=request.prompt,
            rewards=() if failed else tuple(self.random.random() for _ in request.answers),
            num_tokens=() if failed else tuple(answer.num_tokens for answer in request.answers),
            error="reward raised" if failed else "",
        )
        twice = self.random.random() < self.world.faults.duplicate
        return [(scored, request.cause)] * (2 if twice else 1)
