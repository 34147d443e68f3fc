"""Whether trainer and replicas agree on what the same weights say: folded from the trainer's steps, and said once a version at most.

    StepDone.metrics ─▶ mean |log p(trainer) − log p(replica)| of the version's own tokens ─ over the limit? ─▶ Disagreement

Tokens of older versions are left out: staleness makes them differ, too. How it is measured: `services.learner.mismatch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from bus.events import RunPlanned, StepDone

LOGPROB_DIFF = "rollout/logprob_diff"
"""Of all tokens, by the weights that the step began with; `_mean` and `_max`."""
SAME_VERSION = f"{LOGPROB_DIFF}_same_version"
"""Of tokens by the very weights that sampled them; `_mean`, `_max`, `_kl` (rollout from trainer, estimate k3), and `_tokens`."""
OLDER_VERSION = f"{LOGPROB_DIFF}_older_version"
"""Of tokens from before the newest publication, by the weights that the step began with; `_mean` and `_max`."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """How weights get to the replicas, as far as it counts here."""

    steps_per_version: int = 1
    keeps_caches: bool = False
    """Answers may go on with new weights over what older ones have cached (`weight_update_mode: keep`)."""

    @classmethod
    def of(cls, plan: RunPlanned) -> Publishing:
        """As planned."""
        return cls(plan.trigger_parameter_sync_step, keeps_caches=plan.weight_update_mode == "keep")

    def version(self, step: int) -> int:
        """The newest one that is published when `step` steps are done."""
        return step // self.steps_per_version


@dataclass(frozen=True, slots=True)
class Disagreement:
    """In `step`, tokens that weights `version` sampled had log-probabilities that differ by `mean` on average, over `limit`."""

    step: int
    version: int
    mean: float
    limit: float
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        highest, kl, tokens = (self.metrics.get(f"{SAME_VERSION}_{name}", 0.0) for name in ("max", "kl", "tokens"))
        return (
            f"replicas and trainer disagree: in step {self.step}, log-probabilities of the {tokens:.0f} tokens that version {self.version} "
            f"sampled differ by {self.mean:.2g} on average (highest {highest:.2g}, KL {kl:.2g}), over max_logprob_diff {self.limit:g}"
        )

    @property
    def advice(self) -> str:
        """What to look at."""
        return (
            "training takes what was sampled for another distribution than it was: compare actor.dtype with rollout.engine_kwargs.dtype, "
            "look whether the engine serves the weights it was given and samples as rollout says; "
            "if so much is meant, raise async_training.max_logprob_diff"
        )


class Agreement:
    """Feed it each StepDone that counts, once, in order."""

    def __init__(self) -> None:
        self.means: list[float] = []
        """Of each step in which it could be measured."""
        self.disagreements: list[Disagreement] = []
        """The first one of each version that has any."""

    @property
    def mean(self) -> float | None:
        """Over these steps; None: there was none."""
        return fsum(self.means) / len(self.means) if self.means else None

    def apply(self, event: StepDone, limit: float) -> Disagreement | None:
        """Takes in a step; what is to be said now. `limit` 0: nothing ever."""
        mean = event.metrics.get(f"{SAME_VERSION}_mean")
        if mean is None:
            return None
        self.means.append(mean)
        said = bool(self.disagreements) and self.disagreements[-1].version == event.version
        if limit == 0 or mean <= limit or said:  # a mean that is no number is over every limit
            return None
        self.disagreements.append(Disagreement(event.step, event.version, mean, limit, event.metrics))
        return self.disagreements[-1]
