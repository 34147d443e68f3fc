"""Copies of the weights that a step measures the policy against: those at the start of the cycle, and the initial ones.

    begin_cycle ──▶ first step: the weights themselves, copied before they change ──▶ further steps: the copy ──▶ begin_cycle ──▶ …

The copy is part of a checkpoint that is saved within a cycle; at its start there is none to save. The reference is copied from the initial
model whenever a process starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from bus.errors import CheckpointError
from services.learner.checkpoint import CYCLE_STEP, Checkpoint
from services.learner.config import LearnerConfig

CYCLE_START = "cycle_start"
"""Part of a checkpoint."""

Weights = dict[str, torch.Tensor]


Own = Callable[[torch.Tensor], torch.Tensor]


class AnchorWeights:
    """Made from the `parameters` (by name, live) while they are the initial ones.

    `own`: what this process has of a tensor, where `parameters` are shared out over several.
    """

    def __init__(self, config: LearnerConfig, parameters: Mapping[str, torch.Tensor], own: Own = torch.Tensor.detach) -> None:
        self._parameters = parameters
        self._own = own
        self._keeps_cycle = config.old_logprobs == "recompute"
        self._cycle_step = 0
        self._cycle_start: Weights = {}
        """Empty until the first step of the cycle changes the weights."""
        self._reference = _copies(parameters) if config.use_kl_loss else {}

    @property
    def reference(self) -> Weights | None:
        """The initial weights, None when nothing is measured against them."""
        return self._reference or None

    def begin_cycle(self, step: int) -> None:
        """The weights after `step` are those of the cycle that begins."""
        self._cycle_step, self._cycle_start = step, {}

    def begins_cycle(self, step: int) -> bool:
        """The weights after `step` are those that the cycle began with."""
        return step == self._cycle_step

    def cycle_start(self, step: int) -> Weights | None:
        """The weights that the cycle began with; None when those after `step` are them."""
        assert step == self._cycle_step or self._cycle_start or not self._keeps_cycle
        return None if step == self._cycle_step else self._cycle_start

    def keep(self, step: int) -> None:
        """To be called before the weights after `step` change."""
        if self._keeps_cycle and step == self._cycle_step:
            self._cycle_start = _copies(self._parameters)

    def move(self, device: str) -> None:
        """Takes the copies to a device."""
        self._cycle_start = {name: tensor.to(device) for name, tensor in self._cycle_start.items()}
        self._reference = {name: tensor.to(device) for name, tensor in self._reference.items()}

    def state(self) -> dict[str, str | int]:
        """What a checkpoint's state needs."""
        return {CYCLE_STEP: self._cycle_step}

    def parts(self, step: int) -> dict[str, Weights]:
        """What a checkpoint after `step` needs besides."""
        return {CYCLE_START: self._cycle_start} if self._keeps_cycle and step != self._cycle_step else {}

    def saved(self, checkpoint: Checkpoint, step: int) -> tuple[int, Weights]:
        """The cycle's first step and weights that a checkpoint after `step` holds. Raises CheckpointError when they do not fit."""
        cycle_step = checkpoint.state.get(CYCLE_STEP, step)
        if not isinstance(cycle_step, int) or not 0 <= cycle_step <= step:
            raise CheckpointError(
                f"{checkpoint.folder} says that the cycle of step {step} began after step {cycle_step!r}: use an older one"
            )
        if cycle_step == step or not self._keeps_cycle:
            return cycle_step, {}
        weights = {name: self._own(tensor) for name, tensor in checkpoint.part(CYCLE_START).items()}
        if {name: tensor.shape for name, tensor in weights.items()} != {name: tensor.shape for name, tensor in self._parameters.items()}:
            raise CheckpointError(f"{checkpoint.folder / CYCLE_START}.safetensors is of another model: use an older checkpoint")
        device = next(iter(self._parameters.values())).device
        return cycle_step, {name: tensor.to(device) for name, tensor in weights.items()}

    def restore(self, cycle_step: int, weights: Weights) -> None:
        """Takes what `saved` returned."""
        self._cycle_step, self._cycle_start = cycle_step, weights


def _copies(parameters: Mapping[str, torch.Tensor]) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}
