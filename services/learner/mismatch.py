"""How far the rollout's log-probabilities are from the trainer's own, token by token: what sampled, and what is trained, must agree.

    all tokens        ours = weights that the step begins with      engines that compute otherwise, and staleness
    same version      ours = the very weights that sampled          engines that compute otherwise, and nothing else
    older version     ours = weights that the step begins with      both, of tokens from before the newest publication

The weights of a version are those that its cycle's first step begins with. Later steps of the cycle have them only if the learner keeps
them (`old_logprobs: recompute`); without, tokens of that version count among all tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.agreement import LOGPROB_DIFF, OLDER_VERSION, SAME_VERSION
from services.learner.kl import kl_divergence
from services.learner.tally import Tally


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens of whole answers of these `lengths`, as they were sampled; tensors have shape [tokens]. Versions of -1 are not known."""

    logprobs: torch.Tensor
    versions: torch.Tensor
    lengths: Sequence[int]

    def by(self, version: int, *, keeps_caches: bool) -> torch.Tensor:
        """[tokens]: True where the version, and nothing but it, made the log-probability: also all that was cached before the token."""
        same = self.versions == version
        if keeps_caches:
            lengths = torch.tensor(self.lengths)
            firsts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
            same &= self.versions[firsts.to(self.versions.device)] == version
        return same


def tally_mismatch(
    tally: Tally, sampled: Sampled, ours: torch.Tensor, of_version: torch.Tensor | None, version: int, *, keeps_caches: bool
) -> None:
    """Adds a part. The trainer's log-probabilities of the same tokens, [tokens], without gradient:

    ours         of the weights that the step begins with
    of_version   of the weights that were published as `version`, the newest one; None: they are not at hand

    Of the same version also `_kl`, the estimate k3 of KL(rollout || trainer), and `_tokens`, how many there were.
    """
    tally.add_difference(LOGPROB_DIFF, ours, sampled.logprobs)
    older = (sampled.versions >= 0) & (sampled.versions < version)
    _add(tally, OLDER_VERSION, (ours - sampled.logprobs).abs(), older)
    if of_version is not None:
        same = sampled.by(version, keeps_caches=keeps_caches)
        _add(tally, SAME_VERSION, (of_version - sampled.logprobs).abs(), same)
        tally.add_some(f"{SAME_VERSION}_kl", kl_divergence("k3", sampled.logprobs.double(), of_version.double()), same)
        tally.add_total(f"{SAME_VERSION}_tokens", same)


def _add(tally: Tally, name: str, difference: torch.Tensor, chosen: torch.Tensor) -> None:
    tally.add_some(f"{name}_mean", difference, chosen)
    tally.add_highest_of_some(f"{name}_max", difference, chosen)
