"""A run told cycle by cycle, with a policy that decides and a shadow that watches."""

from __future__ import annotations

from bus.events import (
    BoundaryOpened,
    Event,
    PolicyAttached,
    RoutesCut,
    RoutesOpened,
    RunPlanned,
    SampleStarted,
    ServiceStarted,
    ShadowVerdict,
    SwitchDone,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
    WeightsPublished,
)
from services.monitor.summary import Summary
from tests.services.monitor.logs import Story, batch, give_back, plan, ready, step_done


def attached(name: str = "default", mode: str = "active", request: int = 0, label: str = "", **params: float) -> PolicyAttached:
    fields = {"name": name, "params": params, "mode": mode, "code": "", "request": request, "label": label}
    return PolicyAttached.model_validate(fields)


def verdict(kind: type[SwitchRequested] | type[ShadowVerdict], boundary: int, lends: bool, give_back_at: int = 4) -> Event:
    target = "rollout" if lends else "train"
    fields = {"target": target, "answers": boundary, "amends": None, "give_back_at": give_back_at, "max_lent_s": 0.0, "reason": "r"}
    return kind.model_validate({**fields, "evidence": {}})


class Run(Story):
    """R = 2, K = 2; the default policy decides, `deep` watches; each cycle takes the seconds it is told to take."""

    def __init__(self, planned: RunPlanned | None = None) -> None:
        super().__init__(planned or plan(total_steps=40))
        self.now = 10.0
        self.samples = 0
        self.steps = 0
        self.version = 0
        self.swings = 0
        self.say("policy", 0.0, attached()).say("policy:deep", 0.0, attached("fixed_ratio", "shadow", label="deep"))
        started = ServiceStarted(code="")
        self.controller(0.0, started).rollouter(0.0, started).trainer(started)
        self.trainer(WeightsPublished(version=0, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=0.0))
        self.controller(self.now, BoundaryOpened(version=0))

    def say(self, source: str, at_s: float, *events: Event) -> Run:
        """As a `Story`; a policy that attaches begins an epoch."""
        for event in events:
            if isinstance(event, PolicyAttached):
                self._epochs[source] = self._epochs.get(source, 0) + 1
            super().say(source, at_s, event)
        return self

    def answers(self, active: Event | None, *shadows: Event) -> Run:
        if active is not None:
            self.say("policy", 0.0, active)
        for shadow in shadows:
            self.say("policy:deep", 0.0, shadow)
        return self

    def make(self, count: int, seconds: float) -> Run:
        """So many samples come, one after the other, in `seconds` in all."""
        for _ in range(count):
            self.rollouter(self.now, SampleStarted(sample=self.samples, version=self.version))
            self.now += seconds / count
            self.rollouter(self.now, ready(self.samples, self.version))
            self.samples += 1
        return self

    def lend(self, lend_s: float, count: int, seconds: float, back_s: float) -> Run:
        """Lent for `seconds`, in which so many samples come."""
        self.swings += 2
        there, back = self.swings - 1, self.swings
        self.controller(self.now, SwitchStarted(swing=there, target="rollout", reason="verdict", answers=self.version, give_back_at=4))
        self.now += lend_s
        self.rollouter(self.now, RoutesOpened(swing=there, replicas=("h0",)))
        self.controller(self.now, SwitchDone(swing=there, target="rollout"))
        self.make(count, seconds)
        self.controller(self.now, give_back(back)).rollouter(self.now, RoutesCut(swing=back))
        self.now += back_s
        self.controller(self.now, SwitchDone(swing=back, target="train"))
        return self

    def grant(self) -> Run:
        self.controller(self.now, TrainGranted(version=self.version, reason="verdict"))
        return self

    def train(self, *trained: int) -> Run:
        """A step of two samples."""
        self.steps += 1
        self.now += 1.0
        done = step_done(self.steps, self.version, is_boundary=self.steps % 2 == 0, train=1.0)
        self.say("trainer", self.now, batch(self.steps, *trained), done)
        if done.is_boundary:
            self.version += 1
            self.trainer(WeightsPublished(version=self.version, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=0.0))
        return self

    def summary(self) -> Summary:
        summary = Summary()
        for entry in self.entries:
            summary.apply(entry)
        return summary


def first_cycle(run: Run, *shadows: Event) -> Run:
    """The devices are lent for 2 s (swings of 1 and 0.5 s) in which 4 samples come; before that 1 came in 2 s."""
    run.answers(verdict(SwitchRequested, 0, True), *shadows)
    run.make(1, 2.0).lend(1.0, 4, 2.0, 0.5).grant()
    return run.train(0, 1).train(2, 3)
