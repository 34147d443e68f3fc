"""Processes with a core: the real host around it, and a scripted shell that performs what is outstanding, some time later."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from random import Random
from typing import TYPE_CHECKING

from bus.core import Core, Request
from bus.entry import Draft, Entry
from bus.events import (
    BlobRef,
    CheckpointSaved,
    DeadlineMissed,
    DevicesReloaded,
    DevicesYielded,
    EvalScored,
    Event,
    PolicyAttached,
    SampleDropped,
    SampleReady,
    ServiceStarted,
    StepDone,
    SwitchStarted,
    WeightsPublished,
)
from bus.host import Host, rebuild, rebuild_in_order
from bus.log import WHATEVER
from bus.snapshot import freeze, thaw_into
from bus.snapshot_table import core_code
from services.controller.core import ControllerCore
from services.rollouter.core import RollouterCore, Score
from services.rollouter.evaluation import ScoreEvaluation
from services.trainer.core import Checkpoint, Publish, Reload, Train, TrainerCore, Yield
from tests.simulation.deltas import WHOLE_BYTES

if TYPE_CHECKING:
    from tests.simulation.world import World

Facts = list[tuple[Event, int]]
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
        self._started = started
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


class SimTrainer(SimService):
    """Its learner is a digest of everything trained; it loses it with its process and redoes it from checkpoint and log."""

    def __init__(self, world: World, core: TrainerCore, started: ServiceStarted) -> None:
        super().__init__(world, core, started)
        self.trainer = core
        self._state: tuple[int, str] | None = None
        self._base: tuple[int, str] | None = None
        """(version, digest) that it published last."""

    def to_do(self) -> list[Request]:
        return super().to_do()[:1]

    def outcome(self, request: Request) -> Facts:
        match request:
            case Yield():
                return [(DevicesYielded(swing=request.swing, seconds=0.0), request.cause)]
            case Reload():
                self._restore()
                return [(DevicesReloaded(swing=request.swing, seconds=0.0), request.cause)]
            case Publish():
                return [(self._publish(request), request.cause)]
            case Checkpoint():
                return self._save(request)
            case Train():
                return [(self._train(request), max(1, request.cause))]
            case _:
                raise NotImplementedError(request)

    def _restore(self) -> tuple[int, str]:
        """Newest checkpoint that is whole and in this log, then redo; compared at each published digest."""
        if self._state is not None:
            return self._state
        step, digest = 0, "initial"
        for saved in reversed(self.trainer.checkpoints):
            if saved.uri in self.world.disk:
                step, digest = saved.step, self.world.disk[saved.uri]
                break
        published = dict(self.trainer.publications.values())
        for batch in self.trainer.history:
            if step < batch.step <= self.trainer.books.steps_done:
                assert batch.step == step + 1, f"the redo skips from step {step} to {batch.step}"
                step, digest = batch.step, learn(digest, batch.samples)
                weights = published.get(step)
                assert weights is None or weights.digest == digest, f"the redo of step {step} diverged"
        assert step == self.trainer.books.steps_done, f"restored step {step}, the log is at {self.trainer.books.steps_done}"
        self._state = (step, digest)
        return self._state

    def _publish(self, request: Publish) -> Event:
        _, digest = self._restore()
        newest, uri = self.trainer.books.publication, f"w{request.version}"
        kept = {uri, *self.trainer.evaluations.needed_uris, *([newest.uri] if newest is not None else [])}
        self.world.weights = {held: None for held in (*self.world.weights, uri) if held in kept}
        delta, self._base = self.world.deltas.publish(self._base, request.version, digest), (request.version, digest)
        return WeightsPublished(
            version=request.version, revision=0, transport="shm", uri=uri, digest=digest, num_bytes=WHOLE_BYTES, seconds=0.0, delta=delta,
            direct=self.world.directs.publish(self.epoch),
        )  # fmt: skip

    def _save(self, request: Checkpoint) -> Facts:
        step, digest = self._restore()
        assert step == request.step
        uri = f"checkpoint-{self.epoch}-{step}"
        if self.random.random() >= self.world.faults.torn_checkpoint:
            self.world.disk[uri] = digest
        saved = CheckpointSaved(step=step, version=request.version, position=request.position, uri=uri, digest=digest, seconds=0.0)
        return [(saved, request.cause)]

    def _train(self, request: Train) -> Event:
        step, digest = self._restore()
        batch = request.batch
        assert batch.step == step + 1, f"asked to train step {batch.step} after {step}"
        self._state = (batch.step, learn(digest, batch.samples))
        return StepDone(
            step=batch.step,
            version=request.version,
            is_boundary=request.is_boundary,
            num_samples=len(batch.samples),
            seconds={"wait": float(self.random.randint(0, 3)), "train": 1.0},
            metrics={},
        )


def learn(digest: str, samples: tuple[int, ...]) -> str:
    """The scripted learner."""
    return sha1(f"{digest}{samples}".encode()).hexdigest()[:12]


class OtherRollouter(RollouterCore):
    """The rollouter after a change of code: it routes in another rotation."""

    def apply(self, entry: Entry) -> None:
        super().apply(entry)
        if entry.event.kind == "GenerationRequested":
            self._request_number += 1


class OtherController(ControllerCore):
    """The controller after a change of code: it gives the devices back a sample later, if another one can come."""

    def decide(self) -> Event | None:
        event = super().decide()
        early = isinstance(event, SwitchStarted) and event.reason == "give_back" and self.books.in_flight
        return None if early and len(self.books.ready) % 2 == 0 else event


class OtherTrainer(TrainerCore):
    """The trainer after a change of code: it says that it waits in other words."""

    def decide(self) -> Event | None:
        event = super().decide()
        return event.model_copy(update={"need": event.need + 1}) if event is not None and event.kind == "WaitSamples" else event  # type: ignore[attr-defined]


CODE, OTHER_CODE = "code-a", "code-b"
CORES: dict[str, dict[str, Callable[[], Core]]] = {
    CODE: {"trainer": TrainerCore, "rollouter": RollouterCore, "controller": ControllerCore},
    OTHER_CODE: {"trainer": OtherTrainer, "rollouter": OtherRollouter, "controller": OtherController},
}


def make_service(world: World, source: str, code: str, random: Random) -> SimService:
    """A process of one of the services with a core, but the policy."""
    core = CORES[code][source]()
    started = ServiceStarted(code=code)
    if isinstance(core, TrainerCore):
        return SimTrainer(world, core, started)
    if isinstance(core, RollouterCore):
        return SimRollouter(world, core, started)
    return SimController(world, core, started)
