"""What a seed stands for: the run's plan and how much goes wrong in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from bus.events import Deadlines, RunPlanned, Value

POLICIES = ("default", "fixed_ratio", "static_fully_async", "restless")
ARROWS = (
    "BoundaryOpened", "TrainGranted", "WaitSamples", "BatchFormed", "StepDone", "WeightsPublished", "CheckpointSaved",
    "SwitchRequested", "SwitchStarted", "YieldRequested", "DevicesYielded", "YieldRefused", "WakeRequested",
    "ReplicaAwake", "OpenRoutesRequested", "RoutesOpened", "SwitchDone", "CutRoutesRequested", "RoutesCut",
    "AbortRequested", "GenerationFinished", "GenerationRequested", "SleepRequested", "ReplicaAsleep",
    "ReloadRequested", "DevicesReloaded", "SwitchRejected", "SampleReady", "SampleStarted", "SampleDropped",
    "PromptsExhausted", "KillRequested", "ReplicaLost", "ReplicaFailed", "WeightUpdateRequested", "WeightsApplied",
    "PolicyAttached", "ServiceStarted", "DeadlineMissed", "EvalRequested", "EvalScored", "EvalDone",
)  # fmt: skip


@dataclass
class Faults:
    """Chances of things going wrong, and how many crashes there may be; by default nothing does."""

    crashes: int = 0
    crash_chance: float = 0.0
    aimed: dict[str, int] = field(default_factory=dict)
    """Kind -> how many more of it until somebody is killed right after its append."""
    reply_lost: float = 0.0
    answer_error: float = 0.0
    engine_fails: float = 0.0
    engine_hangs: float = 0.0
    engine_script: dict[tuple[str, str], str] = field(default_factory=dict)
    """(replica, during) -> `fail` or `hang`: what its engine does the next time."""
    slow: dict[str, int] = field(default_factory=dict)
    """Request -> entries in the log before it may come to its end."""
    reward_fails: float = 0.0
    filtered: float = 0.0
    duplicate: float = 0.0
    swap_policy: float = 0.0
    stop: float = 0.0
    knobs: bool = False
    """An operator may change settings (`tests.simulation.knobs`)."""
    set_after: dict[int, dict[str, Value]] = field(default_factory=dict)
    """Step -> settings that the operator changes once it is done, in one append; 0: when boundary 0 is open."""
    deadline: float = 0.0
    other_code: float = 0.0
    unsupervised: bool = False
    """Restarts may come before the loss was noticed, as on a cluster."""
    torn_checkpoint: float = 0.0
    restarts: int = 20
    """Restarts of one replica before it is given up."""


def draw_plan(random: Random, run: str) -> RunPlanned:
    """A small plan with every switch in every position."""
    standalone = random.choice((0, 1, 1, 2))
    hybrid = random.choice((0, 1, 1, 2)) if standalone else random.choice((1, 2))
    plan = RunPlanned(
        run=run,
        seed=random.randrange(1000),
        total_steps=random.randint(1, 7),
        required_samples=random.randint(1, 3),
        trigger_parameter_sync_step=random.randint(1, 3),
        staleness_threshold=random.choice((0.0, 0.5, 1.0)),
        rollout_n=random.randint(1, 2),
        num_prompts=random.choice((None, None, random.randint(1, 14))),
        max_prompt_length=4,
        max_response_length=6,
        partial_rollout=random.random() < 0.7,
        enable_rebalance=random.random() < 0.6,
        use_dynamic_resource_scheduling=random.random() < 0.9,
        standalone=tuple(f"s{i}" for i in range(standalone)),
        hybrid=tuple(f"h{i}" for i in range(hybrid)),
        max_running_requests=random.randint(1, 4),
        max_attempts=random.randint(1, 2),
        tail=random.choice(("train", "drop")),
        checkpoint_every_versions=random.randint(1, 2),
        deadlines=Deadlines(),
        policy=random.choice(POLICIES),
        policy_params={},
    )
    lag = random.choice((None, None, 0, 1, 2))
    can_wait = lag is not None and lag >= plan.staleness_threshold
    waits = random.choice(("drop", "wait")) if can_wait else "drop"
    return plan.model_copy(
        update={"max_version_lag": lag, "on_version_lag": waits, **draw_evaluation(Random(run)), **draw_update_mode(Random(run), plan)}
    )


def draw_update_mode(random: Random, plan: RunPlanned) -> dict[str, object]:
    """Answers may be kept over updates where they need not be of one version; randomness of its own leaves the rest of a seed as it is."""
    return {"weight_update_mode": "keep" if plan.partial_rollout and random.random() < 0.5 else "abort"}


def draw_evaluation(random: Random) -> dict[str, object]:
    """What the plan says of evaluation; every other one has none."""
    if random.random() < 0.5:
        return {}
    return {
        "num_validation": random.randint(1, 4),
        "eval_every_versions": random.choice((0, 1, 1, 2)),
        "eval_before_train": random.random() < 0.5,
        "eval_n": random.randint(1, 2),
    }


def draw_faults(random: Random) -> Faults:
    """Calm seeds, seeds with one kind of trouble, and seeds with all of it."""
    level = random.choice((0.0, 0.3, 1.0, 1.0))

    def chance(most: float) -> float:
        return random.choice((0.0, most / 3, most)) * level

    aimed = random.sample(ARROWS, random.randint(0, 3)) if level else []
    return Faults(
        crashes=random.randint(0, 6) if level else 0,
        crash_chance=chance(0.03),
        aimed={kind: random.randint(1, 3) for kind in aimed},
        reply_lost=chance(0.1),
        answer_error=chance(0.15),
        engine_fails=chance(0.15),
        engine_hangs=chance(0.1),
        reward_fails=chance(0.1),
        filtered=chance(0.3),
        duplicate=chance(0.05),
        swap_policy=chance(0.02),
        stop=chance(0.002),
        knobs=True,
        deadline=chance(0.01),
        other_code=random.choice((0.0, 0.0, 0.5)) * level,
        unsupervised=random.random() < 0.3,
        torn_checkpoint=chance(0.3),
        restarts=random.choice((0, 1, 3, 20)),
    )
