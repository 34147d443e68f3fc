"""The model with events: the real cores of trainer, controller and policy, in virtual time.

    queue of entries ─▶ TrainerCore, ControllerCore, PolicyCore ─▶ their decisions, on the same queue, at the same instant
         ▲                    │ outstanding: train, publish, yield, reload          WakeRequested, SleepRequested, …
         └── facts ◀── timers ◀───────────────────────────────────────────────────────────┘
    Slots (the rollouter and two replicas) ─▶ SampleStarted, SampleReady, SampleMoved

What the cores decide takes no time, and everything that follows from an entry happens before the next timer. The trainer leaves and comes
back at once; waking the hybrid takes activate_seconds, putting it to sleep deactivate_seconds, so these are the seconds of the swings. A
publication takes sync_seconds, in which neither the trainer nor the standalone replica does anything else. Boundary 0 opens at second 0.
Policies see no generation requests, so there are none. Prompts do not end before the run. That a run with the real rollouter takes the
very same seconds is tested (tests/policies/whole_run.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from benchmarks.queueing.regime import Regime
from benchmarks.queueing.slots import HYBRID, STANDALONE, Placed, Slots
from bus.core import Core, Request
from bus.entry import Entry
from bus.errors import SwingshiftError
from bus.events import (
    BlobRef,
    BoundaryOpened,
    CutRoutesRequested,
    DeadlineMissed,
    DevicesReloaded,
    DevicesYielded,
    Event,
    OpenRoutesRequested,
    PolicyAttached,
    ReplicaAdded,
    ReplicaAsleep,
    ReplicaAwake,
    RolloutPaused,
    RolloutResumed,
    RoutesCut,
    RoutesOpened,
    RunEnded,
    RunPlanned,
    SampleMoved,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    SleepRequested,
    StepDone,
    SwitchDone,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    WakeRequested,
    WeightsPublished,
)
from bus.host import decide_all
from policies.protocol import Policy
from services.controller.core import ControllerCore
from services.policy.core import PolicyCore
from services.trainer.core import Publish, Reload, Train, TrainerCore, Yield
from services.trainer.waiting import WaitingClock

NANOSECONDS = 1e9
BLOB = BlobRef(name="sample", num_bytes=1, digest="")
NO_LIMIT_S = 1e7
"""Longest lend, when the policy names none."""
FREEING = frozenset[type[Event]]({WeightsPublished, RoutesOpened, RoutesCut})
"""What makes room for samples, in a slot or under the staleness limit."""
MOST_S = 1e7
"""A run that lasts longer never ends."""


@dataclass(frozen=True, slots=True)
class Driven:
    """How a run went."""

    seconds: float
    """From boundary 0 to the last publication."""
    lends: int
    extra_lends: int
    """Those of them that answered no boundary."""
    rejected: int
    """Requests of the policy that could not be followed."""
    waited_s: float
    """Seconds that the trainer waited for samples, devices home."""


def drive(regime: Regime, lengths: Sequence[float], policy: Policy, watch: Callable[[Entry], None] | None = None) -> Driven:
    """Runs a policy in a regime; `watch` is told every entry, in order."""
    run = _Run(regime, lengths, policy, watch)
    run.run()
    return run.result()


def planned(regime: Regime) -> RunPlanned:
    """The plan of a regime's run."""
    return RunPlanned(
        run=regime.name, seed=0, total_steps=regime.K * regime.cycles, required_samples=regime.R, trigger_parameter_sync_step=regime.K,
        staleness_threshold=regime.staleness_threshold, rollout_n=1, max_prompt_length=1, max_response_length=1, enable_rebalance=False,
        standalone=(STANDALONE,), hybrid=(HYBRID,), max_running_requests=max(regime.standalone_slots, regime.hybrid_slots),
        checkpoint_every_versions=regime.cycles + 1, max_lent_s=NO_LIMIT_S,
        devices={f"replica:{STANDALONE}": "cuda:0", f"replica:{HYBRID}": "cuda:1", "trainer": "cuda:1"},
    )  # fmt: skip


def opening(regime: Regime, policy: Policy) -> Iterator[tuple[str, Event]]:
    """How a regime's log begins, with who says it: everybody starts, as in a real one."""
    yield "supervisor", planned(regime)
    for source in ("trainer", "rollouter", "controller"):
        yield source, ServiceStarted(code="")
    yield "policy", PolicyAttached(name=policy.name, params=dict(policy.params), mode="active", code="")
    yield f"replica:{STANDALONE}", ServiceStarted(code="", role="standalone")
    yield f"replica:{HYBRID}", ServiceStarted(code="", role="hybrid")
    yield f"replica:{STANDALONE}", ReplicaAdded(replica=STANDALONE, role="standalone", slots=regime.standalone_slots, seconds=1.0)
    yield f"replica:{HYBRID}", ReplicaAdded(replica=HYBRID, role="hybrid", slots=regime.hybrid_slots, seconds=1.0)


class _Run:
    def __init__(self, regime: Regime, lengths: Sequence[float], policy: Policy, watch: Callable[[Entry], None] | None) -> None:
        self._regime = regime
        self._slots = Slots(lengths, regime.standalone_slots, regime.hybrid_slots, regime.move_seconds)
        self._trainer = TrainerCore()
        self._controller = ControllerCore()
        self._policy = PolicyCore(policy)
        self._cores: tuple[Core, ...] = (self._trainer, self._controller, self._policy)
        self._watch = watch
        self._queue: deque[Entry] = deque()
        self._position = 0
        self._now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_number = 0
        self._performing: dict[str, None] = {}
        """Requests to the trainer that have been taken up."""
        self._waiting = WaitingClock(lambda: self._now)
        self._paused = False
        self._ended_at: float | None = None
        self._lends = self._extra_lends = self._rejected = 0
        self._waited_s = 0.0
        for source, event in opening(regime, policy):
            self._say(source, event)

    # --- the log -----------------------------------------------------------------------------------------------------------------

    def _say(self, source: str, event: Event, derived: bool = False, cause: int = 0) -> None:
        self._position += 1
        at = round(self._now * NANOSECONDS)
        self._queue.append(Entry(self._position, source, 1, derived, cause, at, "", event))

    def _take(self, entry: Entry) -> None:
        """Tells everybody of an entry; what they decide on it goes to the end of the queue."""
        if self._watch is not None:
            self._watch(entry)
        for core in self._cores:
            if not (entry.derived and entry.source == core.source):
                core.apply(entry)
            for event in decide_all(core, entry.position):
                self._say(core.source, event, derived=True, cause=entry.position)
        self._obey(entry)
        if type(entry.event) in FREEING:
            self._generate()

    # --- the loop ----------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end of the run."""
        while self._ended_at is None:
            self._settle()
            if self._ended_at is None:
                self._pass_time()

    def result(self) -> Driven:
        """How it went."""
        assert self._ended_at is not None
        return Driven(self._ended_at, self._lends, self._extra_lends, self._rejected, self._waited_s)

    def _settle(self) -> None:
        """All that happens at this instant."""
        while True:
            while self._queue:
                self._take(self._queue.popleft())
            self._waiting.look(self._trainer.is_waiting)
            self._perform()
            if not self._queue:
                return

    def _pass_time(self) -> None:
        timer = self._timers[0][0] if self._timers else inf
        if self._slots.next_ready_at <= timer:
            self._now = self._slots.next_ready_at
            self._check_end()
            sample, version = self._slots.finish(), self._trainer.books.version
            # Its place is free at once; it is ready only when it is scored.
            self._generate(unscored=1)
            oldest = self._trainer.books.in_flight[sample]
            self._say("rollouter", SampleReady(
                sample=sample, num_tokens=1, oldest_version=oldest, newest_version=version, mean_reward=0.0, blob=BLOB,
            ))  # fmt: skip
        else:
            self._now = timer
            self._check_end()
            heappop(self._timers)[2]()

    def _check_end(self) -> None:
        if self._now > MOST_S:
            done = self._trainer.books.steps_done
            raise SwingshiftError(f"policy {self._policy.policy.name} in {self._regime.name}: nothing moves after step {done}")

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._timer_number += 1
        heappush(self._timers, (self._now + seconds, self._timer_number, action))

    def _say_in(self, seconds: float, source: str, event: Event) -> None:
        self._in(seconds, lambda: self._say(source, event))

    # --- the rollouter -----------------------------------------------------------------------------------------------------------

    def _generate(self, unscored: int = 0) -> None:
        """Fills free slots, as the rollouter does on an entry, before it reads what others decided on it."""
        books = self._trainer.books
        if books.version < 0 or books.last_step_done:
            return
        room = books.limit - self._slots.in_flight - unscored - len(books.ready) - books.used_since_publication
        for placed in self._slots.fill(self._now, room):
            self._say_placed(placed, books.version)
            room -= placed.is_new
        if (room <= 0) != self._paused:
            self._paused = room <= 0
            self._say("rollouter", RolloutPaused(reason="staleness") if self._paused else RolloutResumed(reason="staleness"), derived=True)

    def _say_placed(self, placed: Placed, version: int) -> None:
        if placed.is_new:
            self._say("rollouter", SampleStarted(sample=placed.sample, version=version), derived=True)
        elif placed.moved_from:
            moved = SampleMoved(sample=placed.sample, request=f"{placed.sample}.0", source=placed.moved_from, reason="swing")
            self._say("rollouter", moved, derived=True)

    def _obey(self, entry: Entry) -> None:
        """What rollouter, replicas and clocks do about an entry."""
        match entry.event:
            case OpenRoutesRequested(swing=swing, replicas=replicas):
                self._slots.open_hybrid()
                self._say("rollouter", RoutesOpened(swing=swing, replicas=replicas), derived=True, cause=entry.position)
            case CutRoutesRequested(swing=swing):
                self._slots.cut_hybrid(self._now)
                self._say("rollouter", RoutesCut(swing=swing), derived=True, cause=entry.position)
            case WakeRequested(swing=swing, version=version):
                seconds = self._regime.activate_seconds
                awake = ReplicaAwake(replica=HYBRID, swing=swing, version=version, revision=0, seconds=seconds)
                self._say_in(seconds, f"replica:{HYBRID}", awake)
            case SleepRequested(swing=swing):
                seconds = self._regime.deactivate_seconds
                self._say_in(seconds, f"replica:{HYBRID}", ReplicaAsleep(replica=HYBRID, swing=swing, seconds=seconds))
            case WeightsPublished():
                self._slots.update(self._now)
            case SwitchDone() | SwitchRequested(amends=int()):
                self._watch_lend()
            case event:
                self._count(event)

    def _watch_lend(self) -> None:
        """The controller's deadline of a lend."""
        lent = self._controller.lent
        if lent is not None and lent.started.max_lent_s < NO_LIMIT_S:
            swing, began = lent.started.swing, self._now
            self._in(lent.started.max_lent_s, lambda: self._miss(swing, began))

    def _miss(self, swing: int, began: float) -> None:
        lent = self._controller.lent
        if lent is not None and lent.started.swing == swing and self._now - began >= lent.started.max_lent_s:
            self._say("controller", DeadlineMissed(key=f"lent:{swing}", seconds=lent.started.max_lent_s))

    def _count(self, event: Event) -> None:
        match event:
            case SwitchStarted(target="rollout"):
                self._lends += 1
                self._extra_lends += event.answers is None
            case StepDone():
                self._waited_s += event.seconds["wait"]
            case RunEnded():
                self._ended_at = self._now
            case BoundaryOpened():
                assert self._now == 0.0, "boundary 0 opens at second 0"
            case SwitchRejected():
                self._rejected += 1
            case _:
                pass

    # --- the trainer -------------------------------------------------------------------------------------------------------------

    def _perform(self) -> None:
        for request in self._trainer.outstanding():
            if request.key not in self._performing:
                self._performing[request.key] = None
                self._begin(request)

    def _begin(self, request: Request) -> None:
        match request:
            case Train(batch=batch, version=version, is_boundary=is_boundary):
                done = StepDone(
                    step=batch.step, version=version, is_boundary=is_boundary, num_samples=len(batch.samples), metrics={},
                    seconds={"wait": self._waiting.take(), "load": 0.0, "train": self._regime.train_step_s},
                )  # fmt: skip
                self._say_in(self._regime.train_step_s, "trainer", done)
            case Publish(version=version):
                self._publish(version)
            case Yield(swing=swing):
                self._say("trainer", DevicesYielded(swing=swing, seconds=0.0))
            case Reload(swing=swing):
                self._say("trainer", DevicesReloaded(swing=swing, seconds=0.0))
            case _:
                pass

    def _publish(self, version: int) -> None:
        seconds = self._regime.sync_seconds if version > 0 else 0.0
        self._slots.delay(seconds)
        self._say_in(seconds, "trainer", WeightsPublished(
            version=version, revision=0, transport="file", uri="w", digest="", num_bytes=1, seconds=seconds,
        ))  # fmt: skip
