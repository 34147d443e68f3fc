"""Sums per-token quantities over the passes of a step, on the device, so that only the end of the step waits for it."""

from __future__ import annotations

import torch


class Tally:
    """Means and maxima over `num_tokens` tokens that arrive in parts; sums are float64."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._sums: dict[str, torch.Tensor] = {}
        self._maxima: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor) -> None:
        """Adds a part of the per-token values of `name`, shape [tokens of the part], detached."""
        total = values.sum(dtype=torch.float64)
        self._sums[name] = self._sums[name] + total if name in self._sums else total

    def add_difference(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Adds a part of |ours - theirs| as `<name>_mean` and `<name>_max`."""
        difference = (ours - theirs).abs()
        self.add(f"{name}_mean", difference)
        highest = difference.max()
        name = f"{name}_max"
        self._maxima[name] = torch.maximum(self._maxima[name], highest) if name in self._maxima else highest

    def means(self) -> dict[str, float]:
        """Every name with its mean over all tokens, or its maximum."""
        means = {name: float(total) / self._num_tokens for name, total in self._sums.items()}
        return means | {name: float(highest) for name, highest in self._maxima.items()}
