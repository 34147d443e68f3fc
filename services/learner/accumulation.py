"""The gradient of a batch's loss, pass by pass: it adds up in the parameters.

runs ─▶ pass ─▶ log-probabilities ─▶ loss against the anchors ─▶ backward        measures ─▶ Tally
                        ▲ of the current weights; in a step's first update also of the anchors' weights, without gradient
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from services.agreement import Publishing
from services.learner.anchors import AnchorWeights, Weights
from services.learner.config import LearnerConfig
from services.learner.importance import importance_weights
from services.learner.mismatch import Sampled, tally_mismatch
from services.learner.objective import Anchors, pass_loss
from services.learner.passes import Layout, Pass, ScoredAnswer, build, is_idle
from services.learner.tally import Tally

Forward = Callable[[Pass, Weights | None], tuple[torch.Tensor, torch.Tensor]]
"""(pass, other weights than the current ones) -> log-probabilities and entropies of its answer tokens, see `forward`."""


class Accumulation:
    """Of one learner; `anchors` and `forward` are its."""

    def __init__(self, config: LearnerConfig, layout: Layout, publishing: Publishing, anchors: AnchorWeights, forward: Forward) -> None:
        self._config = config
        self._layout = layout
        self._publishing = publishing
        self._anchors = anchors
        self._forward = forward

    def run(self, step: int, runs: Sequence[Sequence[ScoredAnswer]], num_tokens: int, anchors: list[Anchors]) -> Tally:
        """Leaves the gradient of the runs' part of the loss in the parameters.

        `step`: the last one that was trained. `num_tokens`: answer tokens of the whole batch. The first update of a step fills `anchors`.
        """
        tally = Tally(num_tokens)
        for number, run in enumerate(runs):
            measures = Tally(num_tokens) if is_idle(run) else tally
            tensors = build(run, self._layout).to(torch.device(self._config.device))
            old, reference = self._anchor_logprobs(step, tensors) if len(anchors) == number else (None, None)
            logprobs, entropy = self._forward(tensors, None)
            if len(anchors) == number:
                old = logprobs.detach() if old is None else old
                weights = importance_weights(self._config, old, tensors.rollout_logprobs, tensors.lengths)
                anchors.append(Anchors(old, weights, reference))
            torch.autograd.backward(pass_loss(self._config, tensors, logprobs, entropy, anchors[number], measures))
            self._tally_mismatch(step, measures, tensors, logprobs.detach(), anchors[number])
        return tally

    def _tally_mismatch(self, step: int, tally: Tally, tensors: Pass, ours: torch.Tensor, anchors: Anchors) -> None:
        sampled = Sampled(tensors.rollout_logprobs, tensors.versions, tensors.lengths)
        version, keeps = self._publishing.version(step), self._publishing.keeps_caches
        tally_mismatch(tally, sampled, ours, self._of_version(step, ours, anchors), version, keeps_caches=keeps)

    def _of_version(self, step: int, current: torch.Tensor, anchors: Anchors) -> torch.Tensor | None:
        """Log-probabilities of the weights that the cycle began with, None when these are gone. (Only a step's first update is asked.)"""
        if self._anchors.begins_cycle(step):
            return current
        return anchors.old_logprobs if self._config.old_logprobs == "recompute" else None

    def _anchor_logprobs(self, step: int, tensors: Pass) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities of π_old, None when it is the current policy, and of the reference model, None without one."""
        old = tensors.rollout_logprobs if self._config.old_logprobs == "bypass" else self._frozen(tensors, self._anchors.cycle_start(step))
        return old, self._frozen(tensors, self._anchors.reference)

    def _frozen(self, tensors: Pass, weights: Weights | None) -> torch.Tensor | None:
        if weights is None:
            return None
        with torch.no_grad():
            return self._forward(tensors, weights)[0]
