"""Sums per-token quantities over the passes of a step, on the device, so that only the end of the step waits for it."""

from __future__ import annotations

import math

import torch


class Tally:
    """Means, totals and maxima over `num_tokens` tokens that arrive in parts; sums are float64."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._sums: dict[str, torch.Tensor] = {}
        self._totals: dict[str, torch.Tensor] = {}
        self._maxima: dict[str, torch.Tensor] = {}
        self._some: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """Sum over the chosen tokens, and how many they are."""

    def add(self, name: str, values: torch.Tensor) -> None:
        """Adds a part of the per-token values of `name`, shape [tokens of the part], detached; their mean is reported."""
        total = values.sum(dtype=torch.float64)
        self._sums[name] = self._sums[name] + total if name in self._sums else total

    def add_total(self, name: str, values: torch.Tensor) -> None:
        """Adds a part of values of `name`, detached; their sum is reported."""
        total = values.sum(dtype=torch.float64)
        self._totals[name] = self._totals[name] + total if name in self._totals else total

    def add_highest(self, name: str, values: torch.Tensor) -> None:
        """Adds a part of the per-token values of `name`, detached; the highest is reported."""
        highest = values.max()
        self._maxima[name] = torch.maximum(self._maxima[name], highest) if name in self._maxima else highest

    def add_some(self, name: str, values: torch.Tensor, chosen: torch.Tensor) -> None:
        """Adds a part of the per-token values of `name`, detached; the mean of the `chosen` (bool) ones is reported, if any."""
        total, count = values.where(chosen, 0).sum(dtype=torch.float64), chosen.sum()
        before = self._some.get(name)
        self._some[name] = (total, count) if before is None else (before[0] + total, before[1] + count)

    def add_highest_of_some(self, name: str, values: torch.Tensor, chosen: torch.Tensor) -> None:
        """Adds a part of the per-token values of `name`, detached; the highest of the `chosen` (bool) ones is reported, if any."""
        self.add_highest(name, values.where(chosen, -math.inf))

    def add_difference(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Adds a part of |ours - theirs| as `<name>_mean` and `<name>_max`."""
        difference = (ours - theirs).abs()
        self.add(f"{name}_mean", difference)
        self.add_highest(f"{name}_max", difference)

    def results(self) -> dict[str, float]:
        """Every name with its mean over all or some tokens, its sum, or its maximum."""
        means = {name: float(total) / self._num_tokens for name, total in self._sums.items()}
        of_some = {name: float(total) / float(count) for name, (total, count) in self._some.items() if count}
        others = {name: float(value) for name, value in (*self._totals.items(), *self._maxima.items())}
        return means | of_some | {name: value for name, value in others.items() if value != -math.inf}
