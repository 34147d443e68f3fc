"""Replica processes: no core, only an inbox. They fail, hang, and are killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from bus.entry import Draft, Entry, Producer
from bus.events import (
    AbortRequested,
    BlobRef,
    EvalDone,
    EvalRequested,
    Event,
    GenerationFinished,
    GenerationRequested,
    KillRequested,
    ReplicaAdded,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaFailed,
    ServiceStarted,
    SleepRequested,
    WakeRequested,
    WeightsApplied,
    WeightsPublished,
    WeightUpdateRequested,
)
from services.payloads import answer_blob
from tests.simulation.deltas import HeldWeights

if TYPE_CHECKING:
    from tests.simulation.world import World

Spans = tuple[tuple[int, int], ...]
"""(version, tokens) in order."""


class SimReplica:
    """One incarnation of one replica with a scripted engine."""

    def __init__(self, world: World, name: str, hybrid: bool) -> None:
        self.world = world
        self.name = name
        self.hybrid = hybrid
        self.source = f"replica:{name}"
        self.alive = True
        self.node = world.nodes.place(self.source, hybrid)
        self.log = world.client(self)
        self.producer: Producer | None = None
        self.position = 0
        self.state: Literal["starting", "asleep", "serving", "failed"] = "starting"
        self.hung = False
        self.swing = 0
        self.version = -1
        self.weights = HeldWeights(world.deltas, world.directs)
        self.evaluates = -1
        self.in_flight: dict[tuple[str, int], tuple[GenerationRequested, int]] = {}
        self.kept: dict[tuple[str, int], Spans] = {}
        """Of those in flight when other weights came: the tokens, of this attempt, that earlier weights have drawn."""

    @property
    def epoch(self) -> int:
        assert self.producer is not None
        return self.producer.epoch

    def start(self) -> None:
        """Fences the predecessor; everything older in the inbox is not for this incarnation."""
        role: Literal["hybrid", "standalone"] = "hybrid" if self.hybrid else "standalone"
        started = ServiceStarted(code="", role=role, machine=self.world.nodes.name(self.node))
        attached = self.log.attach(self.source, Draft(started, derived=False, cause=0, at=self.world.clock()))
        self.producer = attached.producer
        self.position = attached.position
        self.world.announce(self, attached.producer.epoch)

    def say(self, *facts: Event, cause: int = 0) -> None:
        """Appends facts."""
        assert self.producer is not None
        self.log.append(self.producer, [Draft(fact, derived=False, cause=cause, at=self.world.clock()) for fact in facts])

    def add(self) -> None:
        """The engine is up (or is not)."""
        if self._fails("start", self.position):
            return
        self.state = "asleep"
        slots = self.world.plan.max_running_requests
        self.say(
            ReplicaAdded(replica=self.name, role="hybrid" if self.hybrid else "standalone", slots=slots, seconds=0.0), cause=self.position
        )

    def has_mail(self) -> bool:
        """Something in the inbox is unread."""
        return any(entry.position > self.position for entry in self.world.store.inboxes.get(self.name, [])[-4:])

    def read(self) -> None:
        """Performs the next request in the inbox."""
        for entry in self.log.read_inbox(self.name, self.position, 1):
            self.position = entry.position
            self._perform(entry)

    def _perform(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case GenerationRequested():
                self._generate(event, entry.position)
            case AbortRequested() if event.epoch == self.epoch:
                self._abort(event, entry.position)
            case WakeRequested() if event.epoch == self.epoch and not self._fails("wake", entry.position):
                assert self.state == "asleep", f"{self.name} was asked to wake while {self.state}"
                self._check_reach(event)
                transport, num_bytes = self.weights.fetch(event)
                self.state, self.swing, self.version = "serving", event.swing, event.version
                self.say(
                    ReplicaAwake(
                        replica=self.name, swing=event.swing, version=event.version, revision=0, seconds=0.0,
                        transport=transport, num_bytes=num_bytes,
                    ),
                    cause=entry.position,
                )  # fmt: skip
            case SleepRequested() if event.epoch == self.epoch and not self._fails("sleep", entry.position):
                self._end_all(entry.position)
                self.state = "asleep"
                self.say(ReplicaAsleep(replica=self.name, swing=event.swing, seconds=0.0), cause=entry.position)
            case EvalRequested() if event.epoch == self.epoch:
                self.evaluates = event.version
            case WeightUpdateRequested() if event.epoch == self.epoch and not self._fails("update", entry.position):
                self._check_weights(event)
                self._check_reach(event)
                transport, num_bytes = self.weights.fetch(event)
                if event.mode == "keep":
                    self._keep_all()
                else:
                    self._end_all(entry.position)
                self.state, self.version = "serving", event.version
                self.say(
                    WeightsApplied(
                        replica=self.name, version=event.version, revision=event.revision, seconds=0.0,
                        transport=transport, num_bytes=num_bytes,
                    ),
                    cause=entry.position,
                )  # fmt: skip
            case KillRequested() | _:
                pass

    def _check_reach(self, event: WakeRequested | WeightUpdateRequested) -> None:
        """Nobody is asked to load what lies in another machine's memory only."""
        nodes = self.world.nodes
        assert not nodes.lacks(event.uri, self.node), f"{self.name} on machine {self.node} cannot read {event.uri}"
        newest = next(entry.event for entry in reversed(self.world.store.entries) if isinstance(entry.event, WeightsPublished))
        assert event.uri != newest.uri or event.uri in nodes.weights, f"{event.uri}, the newest weights, were removed"

    def _check_weights(self, event: WeightUpdateRequested) -> None:
        """Weights under evaluation stay retrievable, however much newer ones are published meanwhile."""
        done = any(isinstance(entry.event, EvalDone) and entry.event.version == event.version for entry in self.world.store.entries)
        assert event.version != self.evaluates or done or event.uri in self.world.nodes.weights, f"weights {event.uri} are gone"

    def _fails(self, during: Literal["start", "wake", "sleep", "update", "abort"], cause: int) -> bool:
        if self.state == "failed":
            return True
        faults, random = self.world.faults, self.world.random
        scripted = faults.engine_script.pop((self.name, during), None)
        if scripted == "fail" or random.random() < faults.engine_fails:
            self.state = "failed"
            self.say(ReplicaFailed(replica=self.name, during=during, error="scripted"), cause=cause)
            return True
        if scripted == "hang" or random.random() < faults.engine_hangs:
            self.hung = True
            return True
        return False

    def _generate(self, event: GenerationRequested, cause: int) -> None:
        wrong = event.epoch != self.epoch or self.state != "serving" or (self.hybrid and event.swing != self.swing)
        if wrong:
            self._finish(event, cause, "refused", 0)
        else:
            self.in_flight[event.request, event.attempt] = (event, cause)

    def _abort(self, event: AbortRequested, cause: int) -> None:
        if event.reason == "swing" and self._fails("abort", cause):
            return
        for key in list(self.in_flight):
            if not event.requests or key[0] in event.requests:
                request, _ = self.in_flight.pop(key)
                self._finish(request, cause, "aborted", self._so_far(request))

    def _end_all(self, cause: int) -> None:
        for request, _ in list(self.in_flight.values()):
            self._finish(request, cause, "aborted", self._so_far(request))
        self.in_flight = {}

    def _keep_all(self) -> None:
        """All in flight have got some tokens further by now, and go on with other weights."""
        for key, (request, _) in self.in_flight.items():
            kept = self.kept.get(key, ())
            self.kept[key] = _extended(kept, self.version, self._so_far(request) - _count(kept))

    def can_finish(self) -> list[tuple[str, int]]:
        """Requests whose answers may come to their end now."""
        slow, end = self.world.faults.slow, len(self.world.store.entries)
        return [key for key in self.in_flight if slow.get(key[0], 0) <= end]

    def finish_one(self) -> None:
        """An answer comes to its end."""
        random = self.world.random
        key = random.choice(self.can_finish())
        request, cause = self.in_flight.pop(key)
        if random.random() < self.world.faults.answer_error:
            self._finish(request, cause, "error", 0)
        else:
            least = max(1, _count(self.kept.get(key, ())))
            self._finish(request, cause, random.choice(("stop", "length")), random.randint(least, request.max_new_tokens))

    def _so_far(self, request: GenerationRequested) -> int:
        kept = _count(self.kept.get(_key(request), ()))
        if request.request in self.world.faults.slow:
            return min(kept + 1, request.max_new_tokens)
        return self.world.random.randint(kept, request.max_new_tokens)

    def _finish(
        self, request: GenerationRequested, cause: int, outcome: Literal["stop", "length", "aborted", "refused", "error"], new_tokens: int
    ) -> None:
        told = outcome in ("stop", "length", "aborted")
        num_tokens = request.prefix_tokens + new_tokens if told else 0
        kept = self.kept.pop(_key(request), ())
        before = self.world.spans[request.prefix.name] if request.prefix is not None else ()
        spans = _joined([*before, *_extended(kept, self.version, new_tokens - _count(kept))]) if told else ()
        assert num_tokens <= self.world.plan.max_response_length, "an answer ran past the limit (C-23)"
        blob = BlobRef(name=answer_blob(request.request, request.attempt), num_bytes=1, digest="0")
        self.world.spans[blob.name] = spans
        fact = GenerationFinished(
            request=request.request,
            attempt=request.attempt,
            replica=self.name,
            outcome=outcome,
            num_tokens=num_tokens,
            version_spans=spans,
            blob=blob,
        )
        twice = self.world.random.random() < self.world.faults.duplicate
        self.say(*([fact, fact] if twice else [fact]), cause=cause)


def _key(request: GenerationRequested) -> tuple[str, int]:
    return request.request, request.attempt


def _count(spans: Spans) -> int:
    return sum(count for _, count in spans)


def _extended(spans: Spans, version: int, count: int) -> Spans:
    return _joined([*spans, (version, count)])


def _joined(spans: Sequence[tuple[int, int]]) -> Spans:
    """Without empty ones, and those of one version as one."""
    joined: list[tuple[int, int]] = []
    for version, count in spans:
        if joined and joined[-1][0] == version:
            joined[-1] = (version, joined[-1][1] + count)
        elif count:
            joined.append((version, count))
    return tuple(joined)
