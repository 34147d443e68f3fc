"""The runs that a policy is tried on: each is small, has a seed, and shows something that a real run may bring."""

from __future__ import annotations

from dataclasses import dataclass

from bus.events import RunPlanned


@dataclass(frozen=True, slots=True)
class Script:
    """One run. Rates are samples a second."""

    name: str
    """What it shows, as people are told it."""
    seed: int = 0
    standalone: tuple[str, ...] = ("s0",)
    hybrid: tuple[str, ...] = ("h0",)
    required_samples: int = 4
    trigger_parameter_sync_step: int = 2
    staleness_threshold: float = 0.5
    cycles: int = 7
    num_prompts: int | None = None
    rate: float = 0.5
    """Of one replica."""
    train_s: float = 4.0
    swing_s: float = 3.0
    """A lend's; a return takes half of it."""
    waking_fails: bool = False
    """Every third lend ends in SwitchRejected."""
    controller_restarts: bool = False
    """In the middle of every other swing, so that its seconds are not known."""
    replicas_fail: bool = False
    samples_fail: bool = False
    misses: bool = False
    """The policy answers every third boundary too late."""
    settings_change: bool = False
    joins_at: int | None = None
    """Cycle in whose lend the policy attaches, after another one; None: it is there from the beginning."""

    @property
    def plan(self) -> RunPlanned:
        """Its plan."""
        return RunPlanned(
            run="conformance",
            seed=self.seed,
            total_steps=self.cycles * self.trigger_parameter_sync_step,
            required_samples=self.required_samples,
            trigger_parameter_sync_step=self.trigger_parameter_sync_step,
            staleness_threshold=self.staleness_threshold,
            rollout_n=1,
            num_prompts=self.num_prompts,
            max_prompt_length=16,
            max_response_length=64,
            standalone=self.standalone,
            hybrid=self.hybrid,
            max_running_requests=4,
        )


SCRIPTS = (
    Script("a run in which the trainer waits", seed=1),
    Script("a run with samples in abundance", seed=2, standalone=("s0", "s1"), rate=3.0, train_s=8.0),
    Script("a run that swings between want and plenty", seed=3, standalone=("s0", "s1"), rate=0.9, staleness_threshold=1.0, cycles=9),
    Script("a run with hybrid replicas only", seed=4, standalone=(), hybrid=("h0", "h1"), rate=1.0),
    Script("prompts that end in the middle of a cycle", seed=5, num_prompts=37, cycles=20),
    Script("no room for staleness, one step a cycle", seed=6, staleness_threshold=0.0, trigger_parameter_sync_step=1),
    Script("swings whose seconds are never known", seed=7, controller_restarts=True),
    Script("lends that fail, answers that come too late", seed=8, waking_fails=True, misses=True, cycles=9),
    Script(
        "replicas and samples that are lost", seed=9, standalone=("s0", "s1"), hybrid=("h0", "h1"), replicas_fail=True, samples_fail=True
    ),
    Script("a policy that takes over in the middle of a lend", seed=10, joins_at=3),
    Script("settings that change in the run", seed=11, settings_change=True),
)
LONG = Script(
    "a long run", seed=12, required_samples=1, trigger_parameter_sync_step=1, staleness_threshold=1.0, cycles=400, rate=0.4, train_s=1.0
)
"""Shows whether what a policy remembers stays bounded."""
