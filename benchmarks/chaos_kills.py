"""Who is killed, and when: a plan that a seed and the number of a run determine.

aimed    right after an entry of a kind goes by: each arrow of a swing, and between StepDone and WeightsPublished
random   some time after the last victim was back, or while it still comes back
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bus.events import Event

REDIS = "redis"
EVERYTHING = "everything"
"""Supervisor, services and server at once; the run is resumed in its folder."""
MACHINE = "machine"
"""As EVERYTHING, and what was in the server and in shared memory is gone, too: the run is resumed from its recording alone."""
WHOLE = (EVERYTHING, MACHINE)


@dataclass(frozen=True, slots=True)
class Aim:
    """An entry of `kind` with these fields."""

    kind: str
    fields: tuple[tuple[str, object], ...] = ()

    def hit(self, event: Event) -> bool:
        return event.kind == self.kind and all(getattr(event, name) == value for name, value in self.fields)

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.fields)])


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL. Without `aim` it comes after `delay_s`; `waits`: only when the victim before is back."""

    target: str
    aim: Aim | None
    delay_s: float
    waits: bool

    def __str__(self) -> str:
        return f"{self.target} {f'at {self.aim}' if self.aim else f'after {self.delay_s:.2f} s'}"


BOUNDARY = (
    Aim("StepDone", (("is_boundary", True),)),
    Aim("StepDone"),
    Aim("BatchFormed"),
    Aim("WeightsPublished"),
    Aim("CheckpointSaved"),
    Aim("TrainGranted"),
    Aim("WaitSamples"),
    Aim("SwitchRequested"),
)  # fmt: skip
LEND = (
    Aim("SwitchStarted", (("target", "rollout"),)), Aim("YieldRequested"), Aim("DevicesYielded"), Aim("YieldRefused"), Aim("WakeRequested"),
    Aim("ReplicaAwake"), Aim("OpenRoutesRequested"), Aim("RoutesOpened"), Aim("SwitchDone", (("target", "rollout"),)),
)  # fmt: skip
BACK = (
    Aim("SwitchStarted", (("target", "train"),)), Aim("CutRoutesRequested"), Aim("RoutesCut"), Aim("AbortRequested"), Aim("SleepRequested"),
    Aim("ReplicaAsleep"), Aim("ReloadRequested"), Aim("DevicesReloaded"), Aim("SwitchDone", (("target", "train"),)),
)  # fmt: skip
SAMPLES = (Aim("SampleStarted"), Aim("GenerationRequested"), Aim("GenerationFinished"), Aim("SampleReady"), Aim("WeightUpdateRequested"))
AIMS = BOUNDARY + LEND + BACK + SAMPLES

FIRST_AIM = Kill("trainer", BOUNDARY[0], 0.0, waits=True)
"""Between StepDone and WeightsPublished: in every run."""

SHARE_AIMED = 0.7
SHARE_WAITING = 0.75
LONGEST_DELAY_S = 2.0
WEIGHTS = {"trainer": 4, "rollouter": 3, "controller": 3, "replica": 4, "policy": 2, "archiver": 2, REDIS: 4, EVERYTHING: 2, MACHINE: 2}
"""How often each is chosen."""


def plan_kills(seed: int, number: int, count: int, replicas: Sequence[str], targets: Sequence[str] = ()) -> list[Kill]:
    """The kills of run `number`; `targets`: only these, all without it."""
    source = random.Random(f"{seed}:{number}")
    names = [name for name in WEIGHTS if not targets or name in targets]
    kills = [] if targets and "trainer" not in targets else [FIRST_AIM]
    while len(kills) < count:
        target = source.choices(names, [WEIGHTS[name] for name in names])[0]
        waits = source.random() < SHARE_WAITING
        # Who strikes a whole run before it is back strikes a resume, and nothing goes by to be aimed at.
        blind = target in WHOLE and not waits
        aim = source.choice(AIMS) if source.random() < SHARE_AIMED and not blind else None
        target = f"replica:{source.choice(replicas)}" if target == "replica" else target
        kills.append(Kill(target, aim, source.uniform(0.0, LONGEST_DELAY_S), waits))
    source.shuffle(kills)
    return kills[:count]
