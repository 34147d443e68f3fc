"""A learner without a model, for tests and benchmarks: its weights are a digest of everything it was trained on.

Two of them have equal weights exactly if they were trained on the same batches in the same order and in the same cycles: a lost, doubled or
swapped sample shows. They are made as bytes, so that a trainer with it starts without torch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bus.errors import CheckpointError
from services.learner.batch import check_batch, rollout_metrics
from services.learner.checkpoint import CYCLE_STEP, MODEL, read_checkpoint, write_checkpoint
from services.learner.plain import Plain
from services.learner.protocol import StepReport
from services.learner.tensor_file import LaterTensors, in_turn
from services.samples import SampleGroup, pack_group

if TYPE_CHECKING:
    import torch

KIND = "scripted-1"


class ScriptedLearner:
    """A `Learner` whose step takes `seconds_per_step` and whose weights are one tensor `digest`, 32 bytes as uint8."""

    def __init__(self, seconds_per_step: float = 0.0) -> None:
        self._seconds_per_step = seconds_per_step
        self._step = 0
        self._cycle_step = 0
        self._digest = hashlib.sha256(b"initial").digest()

    @property
    def step(self) -> int:
        """Number of the last step trained; 0 for the initial weights."""
        return self._step

    def train(self, step: int, batch: Sequence[SampleGroup], micro_batches: Sequence[Sequence[int]]) -> StepReport:
        """See `Learner.train`."""
        check_batch(self._step, step, batch, micro_batches)
        started = time.monotonic()
        total = hashlib.sha256(self._digest)
        total.update(f"{step - self._cycle_step}\n".encode())
        total.update(repr([list(micro_batch) for micro_batch in micro_batches]).encode())
        for group in batch:
            total.update(hashlib.sha256(pack_group(group)).digest())
        time.sleep(self._seconds_per_step)
        self._digest, self._step = total.digest(), step
        metrics = {"actor/loss": 0.0, "actor/grad_norm": 0.0, "actor/lr": 0.0} | rollout_metrics(batch)
        return StepReport(metrics=metrics, seconds={"forward_backward": time.monotonic() - started, "optimizer": 0.0})

    def begin_cycle(self) -> None:
        """See `Learner.begin_cycle`."""
        self._cycle_step = self._step

    def weights(self) -> Mapping[str, torch.Tensor]:
        """See `Learner.weights`."""
        return LaterTensors({"digest": Plain("uint8", (len(self._digest),), memoryview(bytearray(self._digest)))})

    def save(self, folder: Path) -> None:
        """See `Learner.save`."""
        write_checkpoint(folder, {"kind": KIND, "step": self._step, CYCLE_STEP: self._cycle_step}, {MODEL: self.weights()})

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        checkpoint = read_checkpoint(folder)
        step = checkpoint.step(KIND)
        saved = in_turn(checkpoint.part(MODEL)).get("digest")
        if saved is None or saved.shape != (32,):
            raise CheckpointError(f"{folder / 'model.safetensors'} has no digest of 32 bytes: it is of another model")
        cycle_step = checkpoint.state.get(CYCLE_STEP, step)
        assert isinstance(cycle_step, int)
        self._digest, self._step, self._cycle_step = bytes(saved.plain().content), step, cycle_step

    def offload(self) -> None:
        """Nothing to move."""

    def reload(self) -> None:
        """Nothing to move."""

    def close(self) -> None:
        """Nothing to end."""
