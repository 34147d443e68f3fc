"""The learner for any Hugging Face causal language model: GRPO with AdamW, the same bits for the same batches.

groups ─advantages─▶ passes ─┬─ forward, loss, backward ─┐  (gradients add up over the passes of all micro batches)
                             └──────────◀────────────────┘
                             ─▶ norm finite? ─▶ clip ─▶ AdamW at learning_rate(step)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)

from bus.errors import CheckpointError, LearnerError
from services.learner.batch import check_batch, rollout_metrics
from services.learner.causal_lm import answer_logits, choose_layout, load_model, vocabulary_size
from services.learner.checkpoint import State, read_checkpoint, write_checkpoint
from services.learner.config import LearnerConfig
from services.learner.grpo import clipped_surrogate, group_advantages, truncated_importance_weight
from services.learner.passes import Pass, ScoredAnswer, build, cut, score
from services.learner.protocol import StepReport
from services.learner.schedule import learning_rate
from services.learner.tally import Tally
from services.samples import SampleGroup

KIND = "hf-1"
"""Written into checkpoints; changes with their format."""

_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")

_ROOM_FOR_PROMPTS = 2
"""A pass holds this many times the tokens of a micro batch, which counts answers only."""


class HfLearner:
    """A `Learner`. Sets process-wide what bits depend on: torch's number of threads and its use of deterministic algorithms.

    `total_steps` is the run's plan, for the learning-rate schedule. One that starts while its devices are lent begins `offloaded`, without
    touching them. Raises ConfigError for a model folder that cannot be used.
    """

    def __init__(self, config: LearnerConfig, total_steps: int, *, offloaded: bool = False) -> None:
        _make_reproducible(config)
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
        advantages = [group_advantages([answer.reward for answer in group.answers]) for group in batch]
        runs = [run for micro_batch in micro_batches for run in self._cut(score(batch, advantages, micro_batch))]
        self._check_vocabulary(step, runs)
        old_logprobs: list[torch.Tensor] = []
        updates = [self._update(step, runs, old_logprobs) for _ in range(self._config.epochs)]
        self._step = step
        # Differences to the rollout are those of the weights that the step began with, the rest is what the last update saw.
        rollout = {name: value for name, value in updates[0].metrics.items() if name.startswith("rollout/")}
        seconds = {phase: math.fsum(update.seconds[phase] for update in updates) for phase in updates[0].seconds}
        return StepReport(metrics={**updates[-1].metrics, **rollout, **rollout_metrics(batch)}, seconds=seconds)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """See `Learner.weights`. Tied weights appear once, under the first of their names, as in a saved Hugging Face folder."""
        named: dict[str, torch.Tensor] = {}
        seen: set[tuple[int, torch.Size]] = set()
        for name, tensor in self._model.state_dict().items():
            storage = (tensor.data_ptr(), tensor.shape)
            if storage not in seen:
                seen.add(storage)
                named[name] = tensor.detach().cpu()
        return named

    def save(self, folder: Path) -> None:
        """See `Learner.save`. The schedule is a function of the step and no step draws random numbers: there is no more state."""
        moments = {
            f"{name}/{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
        }
        state: State = {"kind": KIND, "step": self._step, "torch": torch.__version__, "layout": self._layout}
        write_checkpoint(folder, state, {"model": self.weights(), "optimizer": moments})

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        checkpoint = read_checkpoint(folder)
        step = checkpoint.step(KIND)
        saved, current = checkpoint.part("model"), self._model.state_dict()
        expected = {name: tensor.shape for name, tensor in self.weights().items()}
        if {name: tensor.shape for name, tensor in saved.items()} != expected:
            raise CheckpointError(f"{folder / 'model.safetensors'} {_first_difference(saved, expected)}: it is of another model")
        moments = self._moments(folder, checkpoint.part("optimizer"))
        with torch.no_grad():
            for name, tensor in saved.items():
                current[name].copy_(tensor)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
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

    def _cut(self, answers: Sequence[ScoredAnswer]) -> list[list[ScoredAnswer]]:
        return cut(answers, self._layout, self._config.max_tokens_per_micro_batch * _ROOM_FOR_PROMPTS)

    def _check_vocabulary(self, step: int, runs: Sequence[Sequence[ScoredAnswer]]) -> None:
        size = vocabulary_size(self._model)
        highest = max(max(*answer.prompt, *answer.tokens) for run in runs for answer in run)
        if highest >= size:
            raise LearnerError(f"step {step}: token {highest} is not in the vocabulary of {size}: the tokenizer is another model's")

    def _update(self, step: int, runs: Sequence[Sequence[ScoredAnswer]], old_logprobs: list[torch.Tensor]) -> StepReport:
        """One optimizer update; the first of a step fills `old_logprobs`. Raises LearnerError before the weights change."""
        started = time.monotonic()
        metrics = self._accumulate(runs, old_logprobs).means()
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

    def _accumulate(self, runs: Sequence[Sequence[ScoredAnswer]], old_logprobs: list[torch.Tensor]) -> Tally:
        """Leaves the gradient of the loss, the mean over all answer tokens of the batch, in the parameters."""
        num_tokens = sum(len(answer.tokens) for run in runs for answer in run)
        mask_dtype = torch.bfloat16 if self._config.dtype == "bfloat16" else torch.float32
        tally = Tally(num_tokens)
        for number, run in enumerate(runs):
            tensors = build(run, self._layout).to(torch.device(self._config.device), mask_dtype)
            logprobs, entropy = self._logprobs(tensors)
            if len(old_logprobs) == number:
                old_logprobs.append(tensors.rollout_logprobs if self._config.old_logprobs == "rollout" else logprobs.detach())
            surrogate = clipped_surrogate(logprobs, old_logprobs[number], tensors.advantages, self._config.clip_low, self._config.clip_high)
            loss = surrogate.loss * self._importance_weight(old_logprobs[number], tensors)
            torch.autograd.backward(loss.sum() / num_tokens)
            tally.add("actor/loss", loss.detach())
            tally.add("actor/entropy", entropy)
            tally.add("actor/ratio_mean", surrogate.ratio)
            tally.add("actor/clip_fraction", surrogate.clipped)
            tally.add_difference("rollout/logprob_diff", logprobs.detach(), tensors.rollout_logprobs)
        return tally

    def _importance_weight(self, old_logprobs: torch.Tensor, tensors: Pass) -> torch.Tensor | float:
        if self._config.tis_cap is None:
            return 1.0
        return truncated_importance_weight(old_logprobs, tensors.rollout_logprobs, self._config.tis_cap)

    def _logprobs(self, tensors: Pass) -> tuple[torch.Tensor, torch.Tensor]:
        """Per answer token: its log-probability at the sampling temperature, and the distribution's entropy (without gradient)."""
        with torch.autocast(self._config.device, torch.bfloat16, enabled=self._config.dtype == "bfloat16"):
            logits = answer_logits(self._model, tensors)
        log_distribution = F.log_softmax(logits.float() / self._config.temperature, dim=-1)
        logprobs = -F.nll_loss(log_distribution, tensors.tokens, reduction="none")
        detached = log_distribution.detach()
        return logprobs, -(detached.exp() * detached).sum(-1)

    def _moments(self, folder: Path, saved: Mapping[str, torch.Tensor]) -> dict[int, dict[str, torch.Tensor]]:
        """The optimizer's state by parameter number. Raises CheckpointError when a parameter's is incomplete or of another shape."""
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for number, (name, parameter) in enumerate(self._parameters.items()):
            found = {key: saved[f"{name}/{key}"] for key in _ADAM_STATE if f"{name}/{key}" in saved}
            if found and [tensor.shape for tensor in found.values()] != [torch.Size(), parameter.shape, parameter.shape]:
                raise CheckpointError(f"{folder / 'optimizer.safetensors'} has no complete state of {name}: it is of another model")
            if found:  # a parameter that never got a gradient has none
                moments[number] = found
        return moments

    def _move(self, device: str) -> None:
        if self._config.device == "cpu":
            return
        self._optimizer.zero_grad(set_to_none=True)
        module: torch.nn.Module = self._model
        module.to(device)
        for state in self._optimizer.state.values():
            for key, value in state.items():
                # AdamW keeps its step count on the CPU.
                state[key] = value if key == "step" else value.to(device)
        torch.cuda.empty_cache()


def _make_reproducible(config: LearnerConfig) -> None:
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if not config.deterministic:
        return
    if config.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses deterministic mode without it
    torch.use_deterministic_algorithms(True)
    # Filling every fresh tensor with NaN finds reads of uninitialised memory, at a price; no operation used here has them.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _first_difference(saved: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Size]) -> str:
    for name in sorted(saved.keys() | expected.keys()):
        if name not in saved:
            return f"lacks {name}"
        if name not in expected:
            return f"has {name}, which the model lacks"
        if saved[name].shape != expected[name]:
            return f"has {name} with shape {list(saved[name].shape)}, the model's has {list(expected[name])}"
    return "does not differ"
