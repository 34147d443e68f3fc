"""The order of prompts: each data epoch has a permutation of its own, which follows from the seed and the epoch's number."""

from __future__ import annotations

import random
from array import array

KEPT_EPOCHS = 2
"""Orders that are remembered: samples of the epoch before may still be in flight."""


class EpochOrder:
    """Epochs over `size` prompts; without `shuffle` all in the order of the set."""

    def __init__(self, size: int, seed: int, *, shuffle: bool) -> None:
        self._size = size
        self._seed = seed
        self._shuffle = shuffle
        self._known: dict[int, array[int]] = {}

    def place(self, number: int) -> int:
        """Which prompt of the set is number `number` of the plan, both from 0."""
        epoch, place = divmod(number, self._size)
        return self._order(epoch)[place] if self._shuffle else place

    def _order(self, epoch: int) -> array[int]:
        if epoch not in self._known:
            while len(self._known) >= KEPT_EPOCHS:
                del self._known[min(self._known)]
            self._known[epoch] = permutation(self._size, f"epoch {self._seed} {epoch}")
        return self._known[epoch]


def permutation(size: int, seed: str) -> array[int]:
    """0 … size - 1 in an order that `seed` fixes, in every version of Python (Fisher and Yates)."""
    source, places = random.Random(seed), array("q", range(size))
    for last in range(size - 1, 0, -1):
        # Only random() gives the same sequence in every version of Python.
        other = int(source.random() * (last + 1))
        places[last], places[other] = places[other], places[last]
    return places
