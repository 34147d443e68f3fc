"""Weights straight from the trainer's process: some publications are offered so, and some replicas then get them."""

from __future__ import annotations

from random import Random

from bus.events import DirectWeights


class Directs:
    """Those of one run. Randomness of its own leaves the rest of a seed as it is."""

    def __init__(self, run: str) -> None:
        self._random = Random(f"directs of {run}")
        self._share = self._random.choice((0.0, 0.0, 0.7, 1.0))
        self._broken = self._random.choice((0.0, 0.3))

    def publish(self, epoch: int) -> DirectWeights | None:
        """What the notice of one publication says of it."""
        if self._random.random() >= self._share:
            return None
        return DirectWeights(address=f"trainer:{epoch}", transports=("nccl",), machine="here", devices=("cuda:0",))

    def come(self, offered: DirectWeights | None) -> bool:
        """Whether a replica that was told gets them so."""
        return offered is not None and self._random.random() >= self._broken
