"""Plays a script: writes a run's log entry by entry, and does what the policy on it asks for, as the controller would.

boundary ─▶ verdict ─▶ lend ─▶ samples until enough are ready ─▶ back ─▶ grant ─▶ steps, waiting for samples ─▶ boundary …
                   └▶ grant

Each service has a clock of its own, as on a cluster: whoever compares times of two of them is wrong by hours.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from bus.core import Core
from bus.entry import Draft, Entry, role_of
from bus.events import (
    BatchFormed,
    BlobRef,
    BoundaryOpened,
    DeadlineMissed,
    DevicesReloaded,
    DevicesYielded,
    Event,
    PolicyAttached,
    PromptsExhausted,
    ReplicaAdded,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaLost,
    RoutesCut,
    RoutesOpened,
    RunEnded,
    SampleDropped,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    SettingChanged,
    StepDone,
    SwitchDone,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
    WaitSamples,
    WeightsPublished,
)
from bus.host import Host, rebuild
from bus.memory_log import MemoryLog, MemoryStore
from policies.registry import create
from policies.view import ScheduleView
from services.policy.conformance.scripts import Script
from services.policy.core import SOURCE, PolicyCore

SECOND = 1_000_000_000
CLOCKS_S = {"trainer": 0, "rollouter": 7_200, "controller": -3_600, "replica": 1_800, "policy": 900, "operator": 60, "supervisor": 30}
MOST_SAMPLES = 20_000
"""A script that takes more is broken."""


class Play:
    """One run with a policy on it; `entries` is its log."""

    def __init__(self, script: Script, core: Core, attached: PolicyAttached) -> None:
        self.script = script
        self.view = ScheduleView()
        self._core = core
        self._attached = attached
        self._store = MemoryStore.create(script.plan, at=0)
        self._random = Random(script.seed)
        self._host: Host | None = None
        self._from = 0
        """Position after which the policy in charge takes entries in."""
        self._asleep = False
        self._delivered = 0
        self._taken = 0
        self._now = 0
        self._epochs = {"trainer": 1, "rollouter": 1, "controller": 1}
        self._replicas: dict[str, bool] = {}
        """Those that are there: name -> it serves."""
        self._lost: list[str] = []
        self._step = self._swing = self._samples = self._lends = 0
        self._answers: dict[int, SwitchRequested] = {}
        self._extra: tuple[int, SwitchRequested] | None = None

    @property
    def entries(self) -> list[Entry]:
        """The whole log."""
        return self._store.entries

    def play(self) -> None:
        """To the end of the run. Raises what the policy raises."""
        self._begin()
        while not self.view.books.last_step_done:
            self._follow_boundary()
            self._go_through_cycle()
        self._write(RunEnded(reason="completed"))

    # --- the log

    def _write(self, event: Event, source: str = "", cause: int = 0) -> int:
        emitters = event.emitted_by()
        source = source or (emitters[0] if emitters else "supervisor")
        at = self._now + CLOCKS_S[role_of(source)] * SECOND
        position = self._store.write(source, self._epochs.get(source, 0), [Draft(event, derived=False, cause=cause, at=at)])
        self._deliver()
        return position

    def _deliver(self) -> None:
        while self._delivered < len(self.entries):
            entry = self.entries[self._delivered]
            self._delivered += 1
            self.view.apply(entry)
            self._note(entry)
            self._catch_up()

    def _catch_up(self) -> None:
        """The policy takes in what it has not seen, unless it is slow just now."""
        while self._host is not None and not self._asleep and self._taken < self._delivered:
            entry = self.entries[self._taken]
            self._taken += 1
            if entry.position > self._from:
                self._host.take([entry])

    def _note(self, entry: Entry) -> None:
        match entry.event:
            case SwitchRequested(answers=int(version)) as event:
                self._answers.setdefault(version, event)
            case SwitchRequested(answers=None, amends=None) as event:
                self._extra = (entry.position, event)
            case _:
                pass

    def _attach(self, core: Core, attached: PolicyAttached) -> None:
        log, self._host = MemoryLog(self._store), None
        start = log.attach(SOURCE, Draft(attached, derived=False, cause=0, at=self._now))
        self._deliver()
        rebuild(core, self.entries)
        self._host, self._from = Host(core, log, start.producer, lambda: self._now), start.position
        self._taken = self._delivered
        self._host.decide(start.position)
        self._deliver()

    def _begin(self) -> None:
        self._deliver()
        for service in self._epochs:
            self._write(ServiceStarted(code=""), service)
        if self.script.joins_at is None:
            self._attach(self._core, self._attached)
        else:
            first = PolicyAttached(name="fixed_ratio", params={"deactivate_ratio": 1.0}, mode="active", code="")
            self._attach(PolicyCore(create(first.name, first.params)), first)
        for name in (*self.script.standalone, *self.script.hybrid):
            self._add_replica(name)
        self._publish(0)
        self._write(BoundaryOpened(version=0))

    # --- boundaries and cycles

    def _follow_boundary(self) -> None:
        version = self.view.books.version
        request, reason = self._answers.get(version), "verdict"
        if request is None:
            # It was slow: its answer comes when the boundary is decided.
            self._write(DeadlineMissed(key=f"verdict:{version}", seconds=5.0))
            self._asleep = False
            self._catch_up()
            self._deliver()
            late = self.entries[-1]
            if isinstance(late.event, SwitchRequested):
                self._write(SwitchRejected(request=late.position, swing=0, reason="late"))
            reason = "deadline"
        elif request.target == "rollout":
            reason = self._lend(request, version)
        self._write(TrainGranted.model_validate({"version": version, "reason": reason}))

    def _go_through_cycle(self) -> None:
        plan, books = self.script.plan, self.view.books
        for step in range(plan.trigger_parameter_sync_step):
            if not self._train(is_last_of_cycle=step == plan.trigger_parameter_sync_step - 1):
                break
        if self.script.settings_change and books.version % 3 == 1:
            self._write(SettingChanged(name="staleness_threshold", value=float(books.version % 2)), "operator")
        if self.script.replicas_fail:
            self._lose_or_bring_back()
        if books.steps_since_publication:
            self._publish(books.version + 1)

    def _train(self, *, is_last_of_cycle: bool) -> bool:
        """One step; false: there is nothing left to be trained."""
        books, need = self.view.books, self.script.required_samples
        waited_s = self._wait_for(need)
        count = min(need, len(books.ready))
        if not count:
            return False
        self._step += 1
        batch = tuple(books.ready)[:count]
        self._write(BatchFormed(step=self._step, samples=batch, micro_batches=(tuple(range(count)),)))
        self._pass(self.script.train_s)
        self._refuse_extra()
        is_boundary = is_last_of_cycle or (books.no_more_samples and not books.ready)
        # The boundary opens with this entry; a slow policy sees it later.
        self._asleep = is_boundary and self.script.misses and books.version % 3 == 1 and not self._is_last(is_boundary=is_boundary)
        seconds = {"wait": waited_s, "train": self.script.train_s}
        self._write(
            StepDone(step=self._step, version=books.version, is_boundary=is_boundary, num_samples=count, seconds=seconds, metrics={})
        )
        return not is_boundary

    def _is_last(self, *, is_boundary: bool) -> bool:
        books = self.view.books
        return self._step >= self.script.plan.total_steps or (is_boundary and books.no_more_samples and not books.ready)

    def _publish(self, version: int) -> None:
        self._write(WeightsPublished(version=version, revision=0, transport="file", uri="w", digest="d", num_bytes=1, seconds=0.1))

    # --- samples

    def _rate(self) -> float:
        return self.script.rate * sum(self._replicas.values())

    def _start_samples(self) -> None:
        books = self.view.books
        while books.startable > 0 and not books.last_step_done and len(books.in_flight) < 4 * max(1, len(self._replicas)):
            self._write(SampleStarted(sample=books.started, version=books.version))
            if books.prompts_left == 0:
                self._write(PromptsExhausted(num_prompts=books.started))

    def _next_sample(self, within_s: float = float("inf")) -> float | None:
        """The next sample becomes ready, or is lost; returns the seconds that took. None: nothing comes within that time."""
        self._start_samples()
        rate, in_flight = self._rate(), tuple(self.view.books.in_flight)
        if not in_flight or rate == 0:
            return None
        seconds = self._random.uniform(0.4, 1.6) / rate
        if seconds > within_s:
            return None
        self._samples += 1
        assert self._samples < MOST_SAMPLES
        self._now += round(seconds * SECOND)
        sample = in_flight[self._random.randrange(min(3, len(in_flight)))]
        if self.script.samples_fail and self._random.random() < 0.1:
            self._write(SampleDropped(sample=sample, reason="failed"), "rollouter")
        else:
            self._write(self._ready(sample))
        return seconds

    def _ready(self, sample: int) -> SampleReady:
        books, tokens = self.view.books, self._random.randrange(4, 64)
        blob = BlobRef(name=f"sample:{sample}", num_bytes=1, digest="d")
        oldest = books.in_flight.get(sample, books.version)
        return SampleReady(
            sample=sample, num_tokens=tokens, oldest_version=oldest, newest_version=books.version, mean_reward=0.5, blob=blob
        )

    def _pass(self, seconds: float) -> None:
        """Time goes by, and samples become ready."""
        while seconds > 0:
            taken = self._next_sample(seconds)
            if taken is None:
                self._now += round(seconds * SECOND)
                return
            seconds -= taken

    def _wait_for(self, need: int) -> float:
        """Until so many are ready, or no more come; returns the seconds that the trainer waited with the devices home."""
        books, waited_s = self.view.books, 0.0
        if len(books.ready) < need:
            self._write(WaitSamples(step=self._step + 1, need=need, have=len(books.ready)))
        while len(books.ready) < need:
            extra = self._take_extra()
            if extra is not None:
                waited_s += self._follow_extra(*extra)
                continue
            taken = self._next_sample()
            if taken is None and not self._starved(need):
                break
            waited_s += taken or 0.0
        return waited_s

    def _starved(self, need: int) -> bool:
        """Nobody else can generate, so the controller lends by itself; false: there is nothing to be generated."""
        books = self.view.books
        if self._rate() > 0 or not (books.in_flight or books.startable):
            return False
        if not self._sleeping():
            self._lose_or_bring_back()
            return True
        self._swap_devices(SwitchStarted(swing=self._next_swing(), target="rollout", reason="starved", give_back_at=need, max_lent_s=600.0))
        self._write(TrainGranted(version=books.version, reason="returned"))
        return True

    # --- swings

    def _lend(self, request: SwitchRequested, version: int | None) -> str:
        """From the yield to the return; returns why the trainer is granted the devices again."""
        self._lends += 1
        reason = "verdict" if not self._sleeping() else "rejected" if self.script.waking_fails and self._lends % 3 == 0 else "returned"
        if reason == "verdict":
            return reason
        lent_s = request.max_lent_s or self.script.plan.max_lent_s
        started = SwitchStarted(
            swing=self._next_swing(), target="rollout", reason="verdict", answers=version,
            give_back_at=request.give_back_at, max_lent_s=lent_s,
        )  # fmt: skip
        if reason == "rejected":
            self._write(started)
            self._write(SwitchRejected(request=0, swing=started.swing, reason="replica_failed"))
            return reason
        self._swap_devices(started)
        return reason

    def _swap_devices(self, started: SwitchStarted) -> None:
        names = self._sleeping()
        self._write(started)
        self._write(DevicesYielded(swing=started.swing, seconds=0.2))
        self._pass(self.script.swing_s)
        self._restart_controller()
        for name in names:
            awake = ReplicaAwake(replica=name, swing=started.swing, version=self.view.books.version, revision=0, seconds=1.0)
            self._write(awake, f"replica:{name}")
            self._replicas[name] = True
        self._write(RoutesOpened(swing=started.swing, replicas=names))
        self._write(SwitchDone(swing=started.swing, target="rollout", replicas=names))
        if self.script.joins_at == self.view.books.version and isinstance(self._host, Host) and self._host.core is not self._core:
            self._attach(self._core, self._attached)
        why = self._generate_lent()
        back = SwitchStarted.model_validate({"swing": self._next_swing(), "target": "train", "reason": why})
        self._write(back)
        self._write(RoutesCut(swing=back.swing))
        for name in names:
            if name in self._replicas:
                self._replicas[name] = False
                self._write(ReplicaAsleep(replica=name, swing=back.swing, seconds=0.5), f"replica:{name}")
        self._pass(self.script.swing_s / 2)
        self._restart_controller()
        self._write(DevicesReloaded(swing=back.swing, seconds=0.3))
        self._write(SwitchDone(swing=back.swing, target="train"))
        self._refuse_extra()

    def _generate_lent(self) -> str:
        """Until enough samples are ready, or the policy or the clock wants the devices back; says which."""
        books, lent_s = self.view.books, 0.0
        while True:
            lend = self.view.swings.lend
            assert lend is not None
            extra = self._take_extra()
            if extra is not None and extra[1].target == "train":
                return "verdict"
            if len(books.ready) >= min(lend.give_back_at, len(books.ready) + len(books.in_flight) + books.startable):
                return "give_back"
            taken = self._next_sample()
            if taken is None:
                return "give_back"
            lent_s += taken
            if lent_s > lend.max_lent_s:
                return "max_lent"

    def _take_extra(self) -> tuple[int, SwitchRequested] | None:
        extra, self._extra = self._extra, None
        return extra

    def _follow_extra(self, position: int, request: SwitchRequested) -> float:
        """What the policy wants in mid-cycle, while the trainer waits; returns seconds that it waited."""
        if request.target == "train" or not self._sleeping():
            self._write(SwitchRejected(request=position, swing=0, reason="not_lent" if request.target == "train" else "no_hybrid"))
            return 0.0
        self._lend(request, None)
        self._write(TrainGranted(version=self.view.books.version, reason="returned"))
        return 0.0

    def _refuse_extra(self) -> None:
        extra = self._take_extra()
        if extra is not None:
            self._write(SwitchRejected(request=extra[0], swing=0, reason="busy"))

    def _next_swing(self) -> int:
        self._swing += 1
        return self._swing

    # --- replicas and services

    def _sleeping(self) -> tuple[str, ...]:
        return tuple(name for name, serves in self._replicas.items() if name in self.script.hybrid and not serves)

    def _add_replica(self, name: str) -> None:
        source = f"replica:{name}"
        self._epochs[source] = self._epochs.get(source, 0) + 1
        role: Literal["hybrid", "standalone"] = "hybrid" if name in self.script.hybrid else "standalone"
        self._write(ServiceStarted(code="", role=role), source)
        self._write(ReplicaAdded(replica=name, role=role, slots=self.script.plan.max_running_requests, seconds=1.0), source)
        self._replicas[name] = role == "standalone"

    def _lose_or_bring_back(self) -> None:
        """What was lost is there again; else one more is lost."""
        if self._lost:
            self._add_replica(self._lost.pop())
            return
        name = tuple(self._replicas)[self._random.randrange(len(self._replicas))]
        del self._replicas[name]
        self._lost.append(name)
        self._write(ReplicaLost(replica=name, epoch=self._epochs[f"replica:{name}"]))

    def _restart_controller(self) -> None:
        if self.script.controller_restarts and self._swing % 2 == 1:
            self._epochs["controller"] += 1
            self._write(ServiceStarted(code=""), "controller")


def attached_of(name: str, source: str = "") -> PolicyAttached:
    """How a policy that is tried attaches."""
    return PolicyAttached(name=name, params={}, mode="active", code="", source=source)
