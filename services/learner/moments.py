"""AdamW's state in a checkpoint: `<parameter>/step`, `<parameter>/exp_avg`, `<parameter>/exp_avg_sq`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bus.errors import CheckpointError
from services.learner.checkpoint import Checkpoint

OPTIMIZER = "optimizer"
"""Part of a checkpoint."""
_KEYS = ("step", "exp_avg", "exp_avg_sq")


def moments_to_save(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Every moment under its parameter's name."""
    return {f"{name}/{key}": value for name, parameter in parameters.items() for key, value in optimizer.state.get(parameter, {}).items()}


def moments_saved(checkpoint: Checkpoint, parameters: Mapping[str, torch.nn.Parameter]) -> dict[int, dict[str, torch.Tensor]]:
    """The optimizer's state by parameter number. Raises CheckpointError when a parameter's is incomplete or of another shape."""
    saved = checkpoint.part(OPTIMIZER)
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        found = {key: saved[f"{name}/{key}"] for key in _KEYS if f"{name}/{key}" in saved}
        if found and [tensor.shape for tensor in found.values()] != [torch.Size(), parameter.shape, parameter.shape]:
            raise CheckpointError(f"{checkpoint.folder / OPTIMIZER}.safetensors has no complete state of {name}: it is of another model")
        if found:  # a parameter that never got a gradient has none
            moments[number] = found
    return moments


def move_moments(optimizer: torch.optim.Optimizer, device: str) -> None:
    """Takes the moments to a device."""
    for state in optimizer.state.values():
        for key, value in state.items():
            # AdamW keeps its step count on the CPU.
            state[key] = value if key == "step" else value.to(device)
