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
import torch.nn.functional as F  # noqa: N812  (its usual name)

from bus.errors import CheckpointError, ConfigError, LearnerError
from services.agreement import Publishing
from services.learner.advantages import estimate_advantages
from services.learner.aggregation import token_shares
from services.learner.anchors import AnchorWeights, Weights
from services.learner.batch import check_batch, rollout_metrics
from services.learner.causal_lm import answer_logits, choose_layout, load_model, vocabulary_size
from services.learner.checkpoint import MODEL, State, read_checkpoint, write_checkpoint
from services.learner.config import LearnerConfig
from services.learner.importance import importance_weights
from services.learner.mismatch import Sampled, tally_mismatch
from services.learner.moments import OPTIMIZER, moments_saved, moments_to_save, move_moments
from services.learner.objective import Anchors, pass_loss
from services.learner.overlong import overlong_metrics, shaped_rewards
from services.learner.passes import Pass, ScoredAnswer, build, cut, score
from services.learner.protocol import StepReport
from services.learner.reproducible import make_reproducible
from services.learner.schedule import learning_rate
from services.learner.tally import Tally
from services.samples import SampleGroup

KIND = "hf-1"
"""Written into checkpoints; changes with their format."""

_ROOM_FOR_PROMPTS = 2
"""A pass holds this many times the tokens of a micro batch, which counts answers only."""


class HfLearner:
    """A `Learner`. Sets process-wide what bits depend on: torch's number of threads and its use of deterministic algorithms.

    `total_steps` is the run's plan, for the learning-rate schedule. One that starts while its devices are lent begins `offloaded`, without
    touching them; `publishing` (else: each step) is only for measures. Raises ConfigError for a model folder that cannot be used.
    """

    def __init__(self, config: LearnerConfig, total_steps: int, *, publishing: Publishing | None = None, offloaded: bool = False) -> None:
        _check_lengths(config)
        make_reproducible(config)
        self._config = config
        self._total_steps = total_steps
        self._publishing = publishing or Publishing()
        self._step = 0
        self._offloaded = offloaded
        self._model = load_model(config, "cpu" if offloaded else config.device)
        self._layout = choose_layout(self._model) if config.layout == "auto" else config.layout
        self._parameters = dict(self._model.named_parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=config.lr, betas=config.betas, eps=config.adam_eps, weight_decay=config.weight_decay
        )
        self._anchors = AnchorWeights(config, self._parameters)

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
        advantages, shares = self._weigh(batch)
        runs = [run for micro_batch in micro_batches for run in self._cut(score(batch, advantages, shares, micro_batch))]
        self._check_vocabulary(step, runs)
        self._anchors.keep(self._step)
        anchors: list[Anchors] = []
        updates = [self._update(step, runs, anchors) for _ in range(self._config.epochs)]
        self._step = step
        # Differences to the rollout are those of the weights that the step began with, the rest is what the last update saw.
        rollout = {name: value for name, value in updates[0].metrics.items() if name.startswith("rollout/")}
        seconds = {phase: math.fsum(update.seconds[phase] for update in updates) for phase in updates[0].seconds}
        measured = {**updates[-1].metrics, **rollout, **rollout_metrics(batch), **overlong_metrics(self._config, batch)}
        return StepReport(metrics=measured, seconds=seconds)

    def begin_cycle(self) -> None:
        """See `Learner.begin_cycle`."""
        self._anchors.begin_cycle(self._step)

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
            raise CheckpointError(f"{folder / 'model.safetensors'} {_first_difference(saved, expected)}: it is of another model")
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

    def _cut(self, answers: Sequence[ScoredAnswer]) -> list[list[ScoredAnswer]]:
        return cut(answers, self._layout, self._config.max_tokens_per_micro_batch * _ROOM_FOR_PROMPTS)

    def _weigh(self, batch: Sequence[SampleGroup]) -> tuple[list[list[float]], list[list[float]]]:
        """Each answer's advantage, and the share that each of its tokens has in the loss."""
        config, num_tokens = self._config, [[len(answer.tokens) for answer in group.answers] for group in batch]
        rewards = shaped_rewards(config, batch)
        advantages = estimate_advantages(config.adv_estimator, rewards, num_tokens, by_std=config.norm_adv_by_std_in_grpo)
        return advantages, token_shares(config.loss_agg_mode, num_tokens, config.loss_norm)

    def _check_vocabulary(self, step: int, runs: Sequence[Sequence[ScoredAnswer]]) -> None:
        size = vocabulary_size(self._model)
        highest = max(max(*answer.prompt, *answer.tokens) for run in runs for answer in run)
        if highest >= size:
            raise LearnerError(f"step {step}: token {highest} is not in the vocabulary of {size}: the tokenizer is another model's")

    def _update(self, step: int, runs: Sequence[Sequence[ScoredAnswer]], anchors: list[Anchors]) -> StepReport:
        """One optimizer update; the first of a step fills `anchors`. Raises LearnerError before the weights change."""
        started = time.monotonic()
        metrics = self._accumulate(runs, anchors).results()
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

    def _accumulate(self, runs: Sequence[Sequence[ScoredAnswer]], anchors: list[Anchors]) -> Tally:
        """Leaves the gradient of the batch's loss in the parameters."""
        tally = Tally(sum(len(answer.tokens) for run in runs for answer in run))
        for number, run in enumerate(runs):
            tensors = build(run, self._layout).to(torch.device(self._config.device))
            old, reference = self._anchor_logprobs(tensors) if len(anchors) == number else (None, None)
            logprobs, entropy = self._logprobs(tensors)
            if len(anchors) == number:
                old = logprobs.detach() if old is None else old
                weights = importance_weights(self._config, old, tensors.rollout_logprobs, tensors.lengths)
                anchors.append(Anchors(old, weights, reference))
            torch.autograd.backward(pass_loss(self._config, tensors, logprobs, entropy, anchors[number], tally))
            self._tally_mismatch(tally, tensors, logprobs.detach(), anchors[number])
        return tally

    def _tally_mismatch(self, tally: Tally, tensors: Pass, ours: torch.Tensor, anchors: Anchors) -> None:
        sampled = Sampled(tensors.rollout_logprobs, tensors.versions, tensors.lengths)
        version, keeps = self._publishing.version(self._step), self._publishing.keeps_caches
        tally_mismatch(tally, sampled, ours, self._of_version(ours, anchors), version, keeps_caches=keeps)

    def _of_version(self, current: torch.Tensor, anchors: Anchors) -> torch.Tensor | None:
        """Log-probabilities of the weights that the cycle began with, None when these are gone. (Only a step's first update is asked.)"""
        if self._anchors.begins_cycle(self._step):
            return current
        return anchors.old_logprobs if self._config.old_logprobs == "recompute" else None

    def _anchor_logprobs(self, tensors: Pass) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities of π_old, None when it is the current policy, and of the reference model, None without one."""
        old = (
            tensors.rollout_logprobs
            if self._config.old_logprobs == "bypass"
            else self._frozen(tensors, self._anchors.cycle_start(self._step))
        )
        return old, self._frozen(tensors, self._anchors.reference)

    def _frozen(self, tensors: Pass, weights: Weights | None) -> torch.Tensor | None:
        if weights is None:
            return None
        with torch.no_grad():
            return self._logprobs(tensors, weights)[0]

    def _logprobs(self, tensors: Pass, weights: Weights | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Per answer token: its log-probability at the sampling temperature, and the distribution's entropy (its gradient if it counts)."""
        with torch.autocast(self._config.device, torch.bfloat16, enabled=self._config.dtype == "bfloat16"):
            logits = answer_logits(self._model, tensors, weights)
        log_distribution = F.log_softmax(logits.float() / self._config.temperature, dim=-1)
        logprobs = -F.nll_loss(log_distribution, tensors.tokens, reduction="none")
        measured = log_distribution if self._config.entropy_coeff else log_distribution.detach()
        return logprobs, -(measured.exp() * measured).sum(-1)

    def _move(self, device: str) -> None:
        if self._config.device == "cpu":
            return
        self._optimizer.zero_grad(set_to_none=True)
        module: torch.nn.Module = self._model
        module.to(device)
        move_moments(self._optimizer, device)
        self._anchors.move(device)
        torch.cuda.empty_cache()


def _check_lengths(config: LearnerConfig) -> None:
    """Raises ConfigError when a setting needs the longest answer allowed and that is not known."""
    needs = {"overlong_buffer_len": config.overlong_buffer_len is not None}
    needs["loss_agg_mode seq-mean-token-sum-norm"] = config.loss_agg_mode == "seq-mean-token-sum-norm" and config.loss_norm is None
    for name, needed in needs.items():
        if needed and config.max_response_length is None:
            raise ConfigError(f"actor.{name} needs the longest answer allowed: set rollout.max_response_length")


def _first_difference(saved: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Size]) -> str:
    for name in sorted(saved.keys() | expected.keys()):
        if name not in saved:
            return f"lacks {name}"
        if name not in expected:
            return f"has {name}, which the model lacks"
        if saved[name].shape != expected[name]:
            return f"has {name} with shape {list(saved[name].shape)}, the model's has {list(expected[name])}"
    return "does not differ"
