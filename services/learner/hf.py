"""The learner for any Hugging Face causal language model: a policy gradient with AdamW, the same bits for the same batches.

groups ─rewards─▶ advantages ─▶ passes ─┬─ forward, loss, backward ─┐  (gradients add up over the passes of all micro batches)
                                        └──────────◀────────────────┘
                                        ─▶ norm finite? ─▶ clip ─▶ AdamW at learning_rate(step)
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bus.errors import CheckpointError, LearnerError
from services.agreement import Publishing
from services.learner.accumulation import Accumulation
from services.learner.anchors import AnchorWeights, Weights
from services.learner.batch import check_batch
from services.learner.causal_lm import choose_layout, load_model, own_tensors, vocabulary_size
from services.learner.checkpoint import MODEL, State, first_difference, read_checkpoint, write_checkpoint
from services.learner.config import LearnerConfig
from services.learner.forward import answer_logprobs
from services.learner.moments import OPTIMIZER, moments_saved, moments_to_save, move_moments
from services.learner.objective import Anchors
from services.learner.passes import Pass, ScoredAnswer, cut, score
from services.learner.protocol import StepReport
from services.learner.reproducible import make_reproducible
from services.learner.schedule import learning_rate
from services.learner.weighing import check_lengths, check_vocabulary, step_report, weigh
from services.samples import SampleGroup

KIND = "hf-1"
"""Written into checkpoints; changes with their format."""

ROOM_FOR_PROMPTS = 2
"""A pass holds this many times the tokens of a micro batch, which counts answers only."""


class HfLearner:
    """A `Learner`. Sets process-wide what bits depend on: torch's number of threads and its use of deterministic algorithms.

    `total_steps` is the run's plan, for the learning-rate schedule. One that starts while its devices are lent begins `offloaded`, without
    touching them; `publishing` (else: each step) is only for measures. Raises ConfigError for a model folder that cannot be used.
    """

    def __init__(self, config: LearnerConfig, total_steps: int, *, publishing: Publishing | None = None, offloaded: bool = False) -> None:
        check_lengths(config)
        make_reproducible(config)
        self._config = config
        self._total_steps = total_steps
        self._step = 0
        self._offloaded = offloaded
        self._model = load_model(config, "cpu" if offloaded else config.device)
        self._layout = choose_layout(self._model) if config.layout == "auto" else config.layout
        self._parameters = dict(self._model.named_parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=config.lr, betas=config.betas, eps=config.adam_eps, weight_decay=config.weight_decay
        )
        self._anchors = AnchorWeights(config, self._parameters)
        self._accumulation = Accumulation(config, self._layout, publishing or Publishing(), self._anchors, self._forward)

    @property
    def step(self) -> int:
        """Number of the last step trained; 0 for the initial weights."""
        return self._step

    @property
    def layout(self) -> str:
        """The layout of passes in use; it belongs to what bits depend on."""
        return self._layout

    def train(self, step: int, batch: Sequence[SampleGroup], micro_batches: Sequence[Sequence[int]]) -> StepReport:
        """See `Learner.train`. With several epochs the weights may have changed when a later one fails: load the last checkpoint then."""
        if self._offloaded:
            raise LearnerError(f"step {step} cannot be trained while the learner is offloaded: reload it first")
        check_batch(self._step, step, batch, micro_batches)
        advantages, shares = weigh(self._config, batch)
        runs = [run for micro_batch in micro_batches for run in self._cut(score(batch, advantages, shares, micro_batch))]
        check_vocabulary(step, [answer for run in runs for answer in run], vocabulary_size(self._model))
        self._anchors.keep(self._step)
        anchors: list[Anchors] = []
        updates = [self._update(step, runs, anchors) for _ in range(self._config.epochs)]
        self._step = step
        return step_report(self._config, batch, updates)

    def begin_cycle(self) -> None:
        """See `Learner.begin_cycle`."""
        self._anchors.begin_cycle(self._step)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """See `Learner.weights`. Tied weights appear once, under the first of their names, as in a saved Hugging Face folder."""
        return {name: tensor.detach().cpu() for name, tensor in own_tensors(self._model.state_dict()).items()}

    def save(self, folder: Path) -> None:
        """See `Learner.save`. The schedule is a function of the step and no step draws random numbers: there is no more state."""
        state: State = {"kind": KIND, "step": self._step, "torch": torch.__version__, "layout": self._layout, **self._anchors.state()}
        parts = {MODEL: self.weights(), OPTIMIZER: moments_to_save(self._optimizer, self._parameters), **self._anchors.parts(self._step)}
        write_checkpoint(folder, state, parts)

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        checkpoint = read_checkpoint(folder)
        step = checkpoint.step(KIND)
        saved, current = checkpoint.part(MODEL), self._model.state_dict()
        expected = {name: tensor.shape for name, tensor in self.weights().items()}
        if {name: tensor.shape for name, tensor in saved.items()} != expected:
            raise CheckpointError(f"{folder / 'model.safetensors'} {first_difference(saved, expected)}: it is of another model")
        moments = moments_saved(checkpoint, self._parameters)
        cycle = self._anchors.saved(checkpoint, step)
        with torch.no_grad():
            for name, tensor in saved.items():
                current[name].copy_(tensor)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self._anchors.restore(*cycle)
        self._step = step

    def offload(self) -> None:
        """See `Learner.offload`."""
        if not self._offloaded:
            self._offloaded = True
            self._move("cpu")

    def reload(self) -> None:
        """See `Learner.reload`."""
        if self._offloaded:
            self._move(self._config.device)
            self._offloaded = False

    def close(self) -> None:
        """Nothing to end."""

    def _cut(self, answers: Sequence[ScoredAnswer]) -> list[list[ScoredAnswer]]:
        return cut(answers, self._layout, self._config.max_tokens_per_micro_batch * ROOM_FOR_PROMPTS)

    def _update(self, step: int, runs: Sequence[Sequence[ScoredAnswer]], anchors: list[Anchors]) -> StepReport:
        """One optimizer update; the first of a step fills `anchors`. Raises LearnerError before the weights change."""
        started = time.monotonic()
        num_tokens = sum(len(answer.tokens) for run in runs for answer in run)
        metrics = self._accumulation.run(self._step, runs, num_tokens, anchors).results()
        computed = time.monotonic()
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._config.max_grad_norm))
        loss, rate = metrics["actor/loss"], learning_rate(self._config, step, self._total_steps)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self._optimizer.zero_grad(set_to_none=True)
            raise LearnerError(f"step {step}: loss {loss}, gradient norm {grad_norm}: weights unchanged; lower lr or look at the batch")
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return StepReport(
            metrics={**metrics, "actor/grad_norm": grad_norm, "actor/lr": rate},
            seconds={"forward_backward": computed - started, "optimizer": time.monotonic() - computed},
        )

    def _forward(self, tensors: Pass, weights: Weights | None) -> tuple[torch.Tensor, torch.Tensor]:
        return answer_logprobs(self._config, self._model, tensors, weights)

    def _move(self, device: str) -> None:
        if self._config.device == "cpu":
            return
        self._optimizer.zero_grad(set_to_none=True)
        module: torch.nn.Module = self._model
        module.to(device)
        move_moments(self._optimizer, device)
        self._anchors.move(device)
        torch.cuda.empty_cache()
