"""The seam between the trainer's shell and what trains: a model, its optimizer and the loss.

groups in log order ──train──▶ StepReport        weights ──▶ WeightStore.publish
folder ◀──save / load──▶ everything a later step depends on
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from services.samples import SampleGroup

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did: `metrics` under slash names (`actor/loss`, `actor/grad_norm`, `rollout/mean_reward`, …), seconds by phase."""

    metrics: Mapping[str, float]
    seconds: Mapping[str, float]


class Learner(Protocol):
    """One model under training. The same state and batches give the same bits on the same machine and build."""

    @property
    def step(self) -> int:
        """Number of the last step trained, also after `load`; 0 for the initial weights."""

    def train(self, step: int, batch: Sequence[SampleGroup], micro_batches: Sequence[Sequence[int]]) -> StepReport:
        """Trains step `step` (the last one + 1) on `batch`; `micro_batches` lists indices into it, each once.

        Raises LearnerError (loss not finite, steps not in order, …) with weights and optimizer as they were before.
        """

    def begin_cycle(self) -> None:
        """The current weights are those that a cycle begins with: they are published now, or were after this step. Twice is once."""

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The current weights on the CPU under their Hugging Face names; valid until the next `train`, `load`, `offload` or `reload`."""

    def save(self, folder: Path) -> None:
        """Writes everything needed to go on bit for bit into `folder`, atomically. Raises CheckpointError when it cannot."""

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote. Raises CheckpointError naming the file when one is torn or of another model, and changes nothing."""

    def offload(self) -> None:
        """Frees the accelerator: parameters and optimizer state go to host memory (CUDA); on CPU nothing moves. Twice is once."""

    def reload(self) -> None:
        """Undoes `offload`; weights are bit-identical to those before. Twice is once."""

    def close(self) -> None:
        """Ends what the learner started; nothing else is asked of it any more. Twice is once."""
