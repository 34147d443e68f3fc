"""Sums per-token quantities over the passes of a step, on the device, so that only the end of the step waits for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
        return joined([self.parts()], self._num_tokens)

    def parts(self) -> TallyParts:
        """What has arrived so far, to be joined with what arrived elsewhere."""
        return TallyParts(
            sums={name: float(total) for name, total in self._sums.items()},
            some={name: (float(total), float(count)) for name, (total, count) in self._some.items()},
            totals={name: float(total) for name, total in self._totals.items()},
            highest={name: float(value) for name, value in self._maxima.items()},
        )


@dataclass(frozen=True, slots=True)
class TallyParts:
    """Sums over the tokens of one tally, under their names; `some`: over the chosen tokens, and how many they were."""

    sums: Mapping[str, float]
    some: Mapping[str, tuple[float, float]]
    totals: Mapping[str, float]
    highest: Mapping[str, float]


def joined(parts: Sequence[TallyParts], num_tokens: int) -> dict[str, float]:
    """The results of tallies that together had `num_tokens` tokens; the order of the parts belongs to the bits."""
    means = {name: total_of(part.sums.get(name, 0.0) for part in parts) / num_tokens for name in _names(part.sums for part in parts)}
    of_some: dict[str, float] = {}
    for name in _names(part.some for part in parts):
        there = [part.some[name] for part in parts if name in part.some]
        count = total_of(counted for _, counted in there)
        of_some |= {name: total_of(total for total, _ in there) / count} if count else {}
    totals = {name: total_of(part.totals.get(name, 0.0) for part in parts) for name in _names(part.totals for part in parts)}
    highest = {name: max(part.highest.get(name, -math.inf) for part in parts) for name in _names(part.highest for part in parts)}
    return means | of_some | totals | {name: value for name, value in highest.items() if value != -math.inf}


def total_of(values: Iterable[float]) -> float:
    """The sum, rounded once; of values that are not all finite, what is not finite in them."""
    there = list(values)
    return math.fsum(there) if all(map(math.isfinite, there)) else sum(there)


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))
