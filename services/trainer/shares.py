"""Which published weights must come into the folder that all see, because a replica is where it cannot read them."""

from __future__ import annotations

from dataclasses import dataclass

from bus.books import Books
from bus.core import Request
from bus.entry import Entry
from bus.evaluations import Evaluations
from bus.events import ServiceStarted, WeightsPublished
from bus.reach import Reach
from bus.sources import REPLICA_PREFIX, TRAINER


@dataclass(frozen=True, slots=True)
class Share(Request):
    """Put weights that were published in one machine's memory into the folder, where all replicas find them."""

    weights: WeightsPublished


class Shares:
    """Part of the trainer's core. `books` and `evaluations` are its folds, and have seen each entry already."""

    def __init__(self, books: Books, evaluations: Evaluations) -> None:
        self.reach = Reach()
        self._books = books
        self._evaluations = evaluations
        self._machine = ""
        """Where the newest trainer is."""
        self._moved = 0
        """Position where a trainer or a replica started last."""

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        self.reach.apply(entry)
        event = entry.event
        if isinstance(event, ServiceStarted) and (entry.source == TRAINER or entry.source.startswith(REPLICA_PREFIX)):
            self._moved = entry.position
            if entry.source == TRAINER:
                self._machine = event.machine

    @property
    def needed(self) -> list[WeightsPublished]:
        """Publications that a replica may still be asked to load."""
        found = (self._books.publication, self._evaluations.current, self._evaluations.waiting)
        return list({weights.uri: weights for weights in found if weights is not None}.values())

    def of(self, weights: WeightsPublished) -> Share:
        """The request to share these."""
        return Share(f"share:{weights.version}.{weights.revision}", self._moved, weights)

    def due(self, home: bool) -> list[Share]:
        """Of weights that a replica waits for. Those in the memory of another machine must be made again, which needs the devices."""
        awaited = self.reach.awaited(self.needed)
        return [self.of(weights) for weights in awaited if home or weights.machine == self._machine]
