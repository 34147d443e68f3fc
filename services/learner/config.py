"""How a learner trains. Read before torch is imported, so that a command line can check it at once."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Schedule = Literal["constant", "linear", "cosine"]


class LearnerConfig(BaseModel):
    """One learner. Everything here except `num_threads` and `device` is arithmetic: changing it changes the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    """Folder of a Hugging Face causal language model."""

    lr: float = Field(default=1e-6, gt=0, le=1)
    lr_schedule: Schedule = "constant"
    """Shape after the warm-up; its length is the run's number of steps (`schedule.learning_rate`)."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of `lr` that `linear` and `cosine` end at."""
    betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped to 1 - clip_low .. 1 + clip_high."""
    clip_high: float = Field(default=0.2, gt=0)
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """Whose probabilities the ratio is taken against: those recorded while sampling, so that the clip bounds how far training moves from
    what generated the data, however stale; or those of the weights at the start of the step, with `tis_cap` correcting for the distance."""
    tis_cap: float | None = Field(default=2.0, gt=0)
    """Cap of the truncated importance weight between trainer and rollout; None: no weight. Identically 1 with `old_logprobs: rollout`."""
    temperature: float = Field(default=1.0, gt=0)
    """The temperature that the answers are sampled with: log-probabilities are compared at the same one."""
    epochs: int = Field(default=1, ge=1, le=64)
    """Optimizer updates on each batch."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the forward and backward pass compute in; parameters and optimizer state are float32 always."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    layout: Literal["auto", "packed", "padded"] = "auto"
    """How answers lie in a pass (`passes`): packed is faster, padded suits every model; auto finds out at the start."""
    num_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one operation on the CPU; None leaves the process's setting. It can change bits, as the order of sums does."""
    deterministic: bool = True
    """Only algorithms that give the same bits each time; an operation that has none raises."""
    max_tokens_per_micro_batch: int = Field(default=2048, ge=1)
    """Answer tokens of one micro batch (`micro_batches.plan_micro_batches`). A forward and backward pass holds at most twice as many,
    prompts included; what is over this is cut into several passes."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}: both must be at least 0 and below 1")
        if self.dtype == "bfloat16" and self.device == "cpu":
            raise ValueError("dtype bfloat16 needs device cuda: use float32 on the CPU")
        return self
