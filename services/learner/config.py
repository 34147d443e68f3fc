"""How a learner trains. Read before torch is imported, so that a command line can check it at once."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Schedule = Literal["constant", "linear", "cosine"]
Estimator = Literal["grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
LossAggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
WeightLevel = Literal["none", "token", "sequence"]
WeightLimit = Literal["truncate", "mask"]
KlEstimate = Literal["k1", "k3"]


class LearnerConfig(BaseModel):
    """One learner. Everything here except `num_threads`, `device` and `rank_timeout_s` is arithmetic: changing it changes the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    """Folder of a Hugging Face causal language model."""

    lr: float = Field(default=1e-6, gt=0, le=1)
    """Learning rate of AdamW after the warm-up."""
    lr_schedule: Schedule = "constant"
    """Shape after the warm-up; its length is the run's number of steps (`schedule.learning_rate`)."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Steps in which it rises from 0."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of `lr` that `linear` and `cosine` end at."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the moments."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's, decoupled."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """A longer gradient is scaled down to this norm."""

    adv_estimator: Estimator = "grpo"
    """How rewards become advantages (`advantages`): against the answer's group, against the others of its group, or against the batch."""
    norm_adv_by_std_in_grpo: bool = True
    """False: `grpo` does not divide by the group's standard deviation (Dr. GRPO)."""
    overlong_buffer_len: int | None = Field(default=None, ge=1)
    """The last so many tokens before `rollout.max_response_length` cost reward, more with each token (`overlong`); unset: none do."""
    overlong_penalty_factor: float = Field(default=1.0, ge=0)
    """Reward that an answer of full length loses."""

    policy_loss: Literal["clip", "unclipped"] = "clip"
    """clip: the ratio pays only within 1 - clip_low .. 1 + clip_high; unclipped: it always does, which is unstable on stale samples."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped to 1 - clip_low .. 1 + clip_high."""
    clip_high: float = Field(default=0.2, gt=0)
    """See `clip_low`; more room upwards keeps exploring (DAPO)."""
    loss_agg_mode: LossAggregation = "token-mean"
    """How tokens are weighed (`aggregation`): each token alike, each answer alike, or each token by one constant."""
    loss_scale_factor: float | None = Field(default=None, gt=0)
    """The constant of `seq-mean-token-sum-norm`; unset: `rollout.max_response_length`."""
    use_kl_loss: bool = False
    """Keeps the initial weights as a reference and adds the divergence from them to the loss."""
    kl_loss_coef: float = Field(default=0.001, ge=0)
    """0 only measures it."""
    kl_loss_type: KlEstimate = "k3"
    """How it is estimated from a token (`kl`)."""
    entropy_coeff: float = Field(default=0.0, ge=0)
    """Weight of the entropy, which is subtracted from the loss."""

    old_logprobs: Literal["bypass", "recompute"] = "bypass"
    """Whose probabilities the ratio is taken against. bypass: those recorded while sampling, so that the clip bounds how far training moves
    from what generated the data, however stale. recompute: those of the weights at the start of the cycle, which costs a forward pass and a
    copy of the weights; importance weights (`rollout_is`) then correct for the distance between these and what generated the data."""
    rollout_is: WeightLevel = "token"
    """Importance weight with `recompute`: one a token, one an answer (the product over its tokens), or none. Always 1 with `bypass`."""
    rollout_is_limit: WeightLimit = "truncate"
    """A weight over the threshold is set to it (truncate), or one outside the thresholds to 0 (mask)."""
    rollout_is_threshold: float = Field(default=2.0, gt=0)
    """Upper threshold of an importance weight."""
    rollout_is_threshold_low: float | None = Field(default=None, ge=0)
    """Lower threshold of `mask`; unset: 1 / rollout_is_threshold."""
    temperature: float = Field(default=1.0, gt=0)
    """The temperature that the answers are sampled with: log-probabilities are compared at the same one."""
    max_response_length: int | None = Field(default=None, ge=1)
    """Most tokens of an answer."""
    epochs: int = Field(default=1, ge=1, le=64)
    """Optimizer updates on each batch."""

    device: Literal["cpu", "cuda"] = "cpu"
    """What the trainer computes on."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the forward and backward pass compute in; parameters and optimizer state are float32 always."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """How attention is computed: PyTorch's fused kernels, or step by step."""
    gradient_checkpointing: bool = False
    """Computes each layer again in the backward pass instead of keeping what it computed: less memory, more time, the same numbers."""
    layout: Literal["auto", "packed", "padded"] = "auto"
    """How answers lie in a pass (`passes`): packed has no padding and each prompt once, padded suits every model; auto finds out at the
    start."""
    num_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of one operation on the CPU; None leaves the process's setting. It can change bits, as the order of sums does."""
    deterministic: bool = True
    """Only algorithms that give the same bits each time; an operation that has none raises."""
    ranks: int = Field(default=1, ge=1, le=1024)
    """Processes that share the model out (FSDP2), each with a GPU, or a part of the cores, of its own. Sums in another order than one
    rank's: the same bits need the same number of ranks."""
    rank_timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    """Seconds after which a rank that others wait for is given up, and the trainer ends and is started again."""
    max_tokens_per_micro_batch: int = Field(default=2048, ge=1)
    """Answer tokens of one micro batch (`micro_batches.plan_micro_batches`). A forward and backward pass holds at most twice as many,
    prompts included; what is over this is cut into several passes."""

    @property
    def lowest_weight(self) -> float:
        """Lower threshold of `mask`."""
        return 1 / self.rollout_is_threshold if self.rollout_is_threshold_low is None else self.rollout_is_threshold_low

    @property
    def loss_norm(self) -> float | None:
        """The constant of `seq-mean-token-sum-norm`, None while it is not known."""
        return self.max_response_length if self.loss_scale_factor is None else self.loss_scale_factor

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}: both must be at least 0 and below 1")
        if self.dtype == "bfloat16" and self.device == "cpu":
            raise ValueError("dtype bfloat16 needs device cuda: use float32 on the CPU")
        if self.rollout_is_limit == "mask" and self.lowest_weight >= self.rollout_is_threshold:
            raise ValueError(
                f"rollout_is_threshold is {self.rollout_is_threshold} and rollout_is_threshold_low is {self.lowest_weight}: every weight "
                "would be masked; set the lower one below the upper one"
            )
        buffer, longest = self.overlong_buffer_len, self.max_response_length
        if buffer is not None and longest is not None and buffer > longest:
            raise ValueError(f"overlong_buffer_len is {buffer}, answers have at most {longest} tokens: it must be at most that")
        return self
