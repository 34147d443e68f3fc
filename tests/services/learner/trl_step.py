"""One optimizer step of TRL's trainers on a batch of ours, looked at from inside: TRL has no functions for its formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from datasets import Dataset
from torch.nn.utils import get_total_norm
from transformers import PreTrainedModel
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from services.samples import Answer, SampleGroup
from tests.services.learner.factories import tokenizer

Tensors = dict[str, torch.Tensor]


@dataclass
class Seen:
    """What came by: the trainer's inputs of the loss, the loss, the norm of its gradient, and where it was clipped."""

    inputs: Tensors = field(default_factory=dict)
    loss: float = math.nan
    grad_norm: float = math.nan


class WatchedGrpo(GRPOTrainer):
    """Trains a batch that was generated elsewhere, and says what it saw, in the batch's order.

    `replaced`: inputs of the loss that are set from outside.
    """

    _last_loaded_step = 0
    """With `use_vllm`: as if an engine had these weights already, so that there need not be one."""

    batch: Sequence[SampleGroup]
    replaced: Tensors
    seen: Seen

    def compute_loss(  # type: ignore[override]
        self, model: PreTrainedModel, inputs: Tensors, return_outputs: bool = False, num_items_in_batch: object = None
    ) -> torch.Tensor:
        order = places(self.batch, inputs)
        inputs = {name: value[order] if value.dim() else value for name, value in inputs.items()} | self.replaced
        loss: torch.Tensor = super().compute_loss(model, inputs)
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        norm = get_total_norm(gradients)
        self.seen = Seen(inputs, loss.item(), norm.item())
        return loss


def places(batch: Sequence[SampleGroup], inputs: Tensors) -> list[int]:
    """Row of each of our answers: the trainer shuffles them."""
    rows = [
        tuple(ids[mask.bool()].tolist() for ids, mask in zip(pair[::2], pair[1::2], strict=True))
        for pair in zip(*(inputs[f"{part}_{kind}"] for part in ("prompt", "completion") for kind in ("ids", "mask")), strict=True)
    ]
    return [rows.index((list(group.prompt_tokens), list(answer.tokens))) for group in batch for answer in group.answers]


class WatchedRloo(RLOOTrainer):
    """The same for RLOO; its answers are its own, only their rewards are ours."""

    seen: Seen

    def compute_loss(  # type: ignore[override]
        self, model: PreTrainedModel, inputs: Tensors, return_outputs: bool = False, num_items_in_batch: object = None
    ) -> torch.Tensor:
        loss: torch.Tensor = super().compute_loss(model, inputs)
        self.seen = Seen(inputs, loss.item())
        return loss


def dataset(batch: Sequence[SampleGroup]) -> Dataset:
    return Dataset.from_dict({"prompt": [" ".join(f"w{token}" for token in group.prompt_tokens) for group in batch]})


def answers_of(batch: Sequence[SampleGroup]) -> list[Answer]:
    return [answer for group in batch for answer in group.answers]


def settings_for(folder: Path, batch: Sequence[SampleGroup]) -> dict[str, object]:
    """One step on the whole batch, on the CPU, without writing anything."""
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "max_steps": 1,
        "per_device_train_batch_size": len(answers_of(batch)),
        "num_generations": len(batch[0].answers),
        "max_completion_length": 9,
        "shuffle_dataset": False,
        "disable_dropout": True,
        "gradient_checkpointing": False,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }


def rewards_as_recorded(batch: Sequence[SampleGroup], prompts: Sequence[str]) -> list[float | None]:
    answers = answers_of(batch)
    assert len(prompts) == len(answers)
    return [answer.reward for answer in answers]


def trl_grpo(folder: Path, model: Path, batch: Sequence[SampleGroup], replaced: Tensors, **settings: object) -> Seen:
    """`sampling` among the settings: importance weights between the current policy and what the answers were sampled with."""
    weighted = bool(settings.pop("sampling", False))

    def rollout(prompts: list[str], _trainer: GRPOTrainer) -> dict[str, list[list[int]] | list[list[float]]]:
        groups = [group for group in batch for _ in group.answers]
        assert len(prompts) == len(groups)
        return {
            "prompt_ids": [list(group.prompt_tokens) for group in groups],
            "completion_ids": [list(answer.tokens) for answer in answers_of(batch)],
            "logprobs": [list(answer.logprobs) for answer in answers_of(batch)],
        }

    def reward(prompts: list[str], **_: object) -> list[float | None]:
        return rewards_as_recorded(batch, prompts)

    trainer = WatchedGrpo(
        model=str(model),
        reward_funcs=reward,
        args=GRPOConfig(**settings_for(folder, batch), **settings),  # type: ignore[arg-type]
        train_dataset=dataset(batch),
        processing_class=tokenizer(),
        rollout_func=rollout,
    )
    trainer.use_vllm = weighted
    trainer.batch = batch
    trainer.replaced = replaced
    trainer.train()
    return trainer.seen


def trl_rloo(folder: Path, model: Path, batch: Sequence[SampleGroup]) -> Seen:
    def reward(prompts: list[str], **_: object) -> list[float | None]:
        return rewards_as_recorded(batch, prompts)

    trainer = WatchedRloo(
        model=str(model),
        reward_funcs=reward,
        args=RLOOConfig(**settings_for(folder, batch), beta=0.0),  # type: ignore[arg-type]
        train_dataset=dataset(batch),
        processing_class=tokenizer(),
    )
    trainer.train()
    return trainer.seen
