"""How long the answers of samples were by where they ended: whoever loses long samples more often than short ones trains on a bias."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt


@dataclass(slots=True)
class Spread:
    """Tokens of some samples."""

    samples: int = 0
    total: int = 0
    squares: int = 0

    def add(self, num_tokens: int) -> None:
        self.samples += 1
        self.total += num_tokens
        self.squares += num_tokens * num_tokens

    @property
    def mean(self) -> float:
        """0 without samples."""
        return self.total / self.samples if self.samples else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean, 0 with fewer than two samples."""
        if self.samples < 2:
            return 0.0
        variance = max(0.0, self.squares - self.samples * self.mean**2) / (self.samples - 1)
        return sqrt(variance / self.samples)


class Lengths:
    """Answer tokens of the samples that were trained, and of those that were dropped, by reason."""

    def __init__(self) -> None:
        self.of_trained = Spread()
        self.of_dropped: dict[str, Spread] = {}
        self._in_flight: dict[int, dict[str, int]] = {}
        """Sample -> tokens of each of its answers so far."""

    def answer(self, sample: int, request: str, num_tokens: int) -> None:
        """An answer as far as it got."""
        answers = self._in_flight.setdefault(sample, {})
        answers[request] = max(num_tokens, answers.get(request, 0))

    def ready(self, sample: int) -> None:
        """From here on its length is known to the ledger."""
        self._in_flight.pop(sample, None)

    def trained(self, num_tokens: int) -> None:
        self.of_trained.add(num_tokens)

    def dropped(self, sample: int, reason: str, num_tokens: int) -> None:
        """`num_tokens`: 0 for one that was not ready, which has what its answers had got to."""
        answers = self._in_flight.pop(sample, {})
        self.of_dropped.setdefault(reason, Spread()).add(num_tokens or sum(answers.values()))

    def as_dict(self) -> dict[str, object]:
        """Plain data."""
        return {
            "trained": _plain(self.of_trained),
            "dropped": {reason: _plain(spread) for reason, spread in sorted(self.of_dropped.items())},
        }


def _plain(spread: Spread) -> dict[str, float]:
    return {"samples": spread.samples, "mean_tokens": spread.mean, "standard_error": spread.error}
