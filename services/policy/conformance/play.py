"""Plays a script: writes a run's log entry by entry, and does what the policy on it asks for, as the controller would.

boundary ─▶ verdict ─▶ lend ─▶ samples until enough are ready ─▶ back ─▶ grant ─▶ steps, waiting for samples ─▶ boundary …
                   └▶ grant
"""

from __future__ import annotations

from bus.core import Core
from bus.entry import Entry
from bus.events import (
    BatchFormed,
    BoundaryOpened,
    DeadlineMissed,
    DevicesReloaded,
    DevicesYielded,
    PolicyAttached,
    RoutesCut,
    RoutesOpened,
    RunEnded,
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
from policies.registry import create
from policies.view import ScheduleView
from services.policy.conformance.fleet import Fleet
from services.policy.conformance.scripts import Script
from services.policy.conformance.written_log import WrittenLog
from services.policy.core import PolicyCore


class Play:
    """One run with a policy on it; `entries` is its log."""

    def __init__(self, script: Script, core: Core, attached: PolicyAttached) -> None:
        self.script = script
        self._log = WrittenLog(script.plan)
        self._core = core
        self._attached = attached
        self._fleet = Fleet(script, self._log)
        self._step = self._swing = self._lends = 0

    @property
    def entries(self) -> list[Entry]:
        """The whole log."""
        return self._log.entries

    @property
    def view(self) -> ScheduleView:
        """What the policy sees."""
        return self._log.view

    def play(self) -> None:
        """To the end of the run. Raises what the policy raises."""
        self._begin()
        while not self.view.books.last_step_done:
            self._follow_boundary()
            self._go_through_cycle()
        self._log.write(RunEnded(reason="completed"))

    def _begin(self) -> None:
        for service in ("trainer", "rollouter", "controller"):
            self._log.start(service, ServiceStarted(code=""))
        if self.script.joins_at is None:
            self._log.attach(self._core, self._attached)
        else:
            first = PolicyAttached(name="fixed_ratio", params={"deactivate_ratio": 1.0}, mode="active", code="")
            self._log.attach(PolicyCore(create(first.name, first.params)), first)
        for name in (*self.script.standalone, *self.script.hybrid):
            self._fleet.add(name)
        self._publish(0)
        self._log.write(BoundaryOpened(version=0))

    # --- boundaries and cycles

    def _follow_boundary(self) -> None:
        version = self.view.books.version
        request, reason = self._log.answers.get(version), "verdict"
        if request is None:
            # It was slow: its answer comes when the boundary is decided.
            self._log.write(DeadlineMissed(key=f"verdict:{version}", seconds=5.0))
            late = self._log.wake_up()
            if isinstance(late.event, SwitchRequested):
                self._log.write(SwitchRejected(request=late.position, swing=0, reason="late"))
            reason = "deadline"
        elif request.target == "rollout":
            reason = self._lend(request, version)
        self._log.write(TrainGranted.model_validate({"version": version, "reason": reason}))

    def _go_through_cycle(self) -> None:
        plan, books = self.script.plan, self.view.books
        for step in range(plan.trigger_parameter_sync_step):
            if not self._train(is_last_of_cycle=step == plan.trigger_parameter_sync_step - 1):
                break
        if self.script.settings_change and books.version % 3 == 1:
            self._log.write(SettingChanged(name="staleness_threshold", value=float(books.version % 2)), "operator")
        if self.script.replicas_fail:
            self._fleet.lose_or_bring_back()
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
        self._log.write(BatchFormed(step=self._step, samples=batch, micro_batches=(tuple(range(count)),)))
        self._fleet.pass_seconds(self.script.train_s)
        self._refuse_extra()
        is_boundary = is_last_of_cycle or (books.no_more_samples and not books.ready)
        # The boundary opens with this entry; a slow policy sees it later.
        self._log.asleep = is_boundary and self.script.misses and books.version % 3 == 1 and not self._is_last(is_boundary=is_boundary)
        seconds = {"wait": waited_s, "train": self.script.train_s}
        self._log.write(
            StepDone(step=self._step, version=books.version, is_boundary=is_boundary, num_samples=count, seconds=seconds, metrics={})
        )
        return not is_boundary

    def _is_last(self, *, is_boundary: bool) -> bool:
        books = self.view.books
        return self._step >= self.script.plan.total_steps or (is_boundary and books.no_more_samples and not books.ready)

    def _publish(self, version: int) -> None:
        self._log.write(WeightsPublished(version=version, revision=0, transport="file", uri="w", digest="d", num_bytes=1, seconds=0.1))

    def _wait_for(self, need: int) -> float:
        """Until so many are ready, or no more come; returns the seconds that the trainer waited with the devices home."""
        books, waited_s = self.view.books, 0.0
        if len(books.ready) < need:
            self._log.write(WaitSamples(step=self._step + 1, need=need, have=len(books.ready)))
        while len(books.ready) < need:
            extra = self._log.take_extra()
            if extra is not None:
                self._follow_extra(*extra)
                continue
            taken = self._fleet.next_sample()
            if taken is None and not self._starved(need):
                break
            waited_s += taken or 0.0
        return waited_s

    def _starved(self, need: int) -> bool:
        """Nobody else can generate, so the controller lends by itself; false: there is nothing to be generated."""
        books = self.view.books
        if self._fleet.rate > 0 or not (books.in_flight or books.startable):
            return False
        if not self._fleet.sleeping:
            self._fleet.lose_or_bring_back()
            return True
        self._swap_devices(SwitchStarted(swing=self._next_swing(), target="rollout", reason="starved", give_back_at=need, max_lent_s=600.0))
        self._log.write(TrainGranted(version=books.version, reason="returned"))
        return True

    # --- swings

    def _lend(self, request: SwitchRequested, version: int | None) -> str:
        """From the yield to the return; returns why the trainer is granted the devices again."""
        self._lends += 1
        reason = "verdict" if not self._fleet.sleeping else "rejected" if self.script.waking_fails and self._lends % 3 == 0 else "returned"
        if reason == "verdict":
            return reason
        lent_s = request.max_lent_s or self.script.plan.max_lent_s
        started = SwitchStarted(
            swing=self._next_swing(), target="rollout", reason="verdict", answers=version,
            give_back_at=request.give_back_at, max_lent_s=lent_s,
        )  # fmt: skip
        if reason == "rejected":
            self._log.write(started)
            self._log.write(SwitchRejected(request=0, swing=started.swing, reason="replica_failed"))
            return reason
        self._swap_devices(started)
        return reason

    def _swap_devices(self, started: SwitchStarted) -> None:
        names = self._fleet.sleeping
        self._log.write(started)
        self._log.write(DevicesYielded(swing=started.swing, seconds=0.2))
        self._fleet.pass_seconds(self.script.swing_s)
        self._restart_controller()
        self._fleet.wake(names, started.swing)
        self._log.write(RoutesOpened(swing=started.swing, replicas=names))
        self._log.write(SwitchDone(swing=started.swing, target="rollout", replicas=names))
        if self.script.joins_at == self.view.books.version and self._log.in_charge is not self._core:
            self._log.attach(self._core, self._attached)
        why = self._generate_lent()
        back = SwitchStarted.model_validate({"swing": self._next_swing(), "target": "train", "reason": why})
        self._log.write(back)
        self._log.write(RoutesCut(swing=back.swing))
        self._fleet.sleep(names, back.swing)
        self._fleet.pass_seconds(self.script.swing_s / 2)
        self._restart_controller()
        self._log.write(DevicesReloaded(swing=back.swing, seconds=0.3))
        self._log.write(SwitchDone(swing=back.swing, target="train"))
        self._refuse_extra()

    def _generate_lent(self) -> str:
        """Until enough samples are ready, or the policy or the clock wants the devices back; says which."""
        books, lent_s = self.view.books, 0.0
        while True:
            lend = self.view.swings.lend
            assert lend is not None
            extra = self._log.take_extra()
            if extra is not None and extra[1].target == "train":
                return "verdict"
            if len(books.ready) >= min(lend.give_back_at, len(books.ready) + len(books.in_flight) + books.startable):
                return "give_back"
            taken = self._fleet.next_sample()
            if taken is None:
                return "give_back"
            lent_s += taken
            if lent_s > lend.max_lent_s:
                return "max_lent"

    def _follow_extra(self, position: int, request: SwitchRequested) -> None:
        """What the policy wants in mid-cycle, while the trainer waits."""
        if request.target == "train" or not self._fleet.sleeping:
            self._log.write(SwitchRejected(request=position, swing=0, reason="not_lent" if request.target == "train" else "no_hybrid"))
            return
        self._lend(request, None)
        self._log.write(TrainGranted(version=self.view.books.version, reason="returned"))

    def _refuse_extra(self) -> None:
        extra = self._log.take_extra()
        if extra is not None:
            self._log.write(SwitchRejected(request=extra[0], swing=0, reason="busy"))

    def _next_swing(self) -> int:
        self._swing += 1
        return self._swing

    def _restart_controller(self) -> None:
        if self.script.controller_restarts and self._swing % 2 == 1:
            self._log.start("controller", ServiceStarted(code=""))


def attached_of(name: str, source: str = "") -> PolicyAttached:
    """How a policy that is tried attaches."""
    return PolicyAttached(name=name, params={}, mode="active", code="", source=source)
