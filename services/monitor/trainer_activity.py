"""What the trainer does with its devices while it has them: its own core says so, fed with the log.

    publish ▸ checkpoint ▸ yield ▸ reload ▸ train: its one worker does the first of what is outstanding        none: waiting, or idle

So a checkpoint that is written while the next batch, a swing, or the grant is there already is a checkpoint, and nothing is counted twice.
"""

from __future__ import annotations

from bus.entry import Entry
from bus.events import ServiceLost, ServiceStarted
from services.monitor.classes import Class
from services.trainer.core import Checkpoint, Publish, Train, TrainerCore

SOURCE = "trainer"


class TrainerActivity:
    """Feed it every entry once, in order."""

    def __init__(self) -> None:
        self._core = TrainerCore()
        self._lost = False

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        self._core.apply(entry)
        match entry.event:
            case ServiceStarted() if entry.source == SOURCE:
                self._lost = False
            case ServiceLost(service="trainer"):
                self._lost = True
            case _:
                pass

    def doing(self) -> Class:
        """What it does now. `waiting`: granted, and no batch; `idle`: the cycle is over and what comes next is not decided."""
        if self._lost:
            return "lost"
        for request in self._core.outstanding():
            match request:
                case Publish():
                    return "publishing"
                case Checkpoint():
                    return "checkpoint"
                case Train():
                    return "training"
                case _:
                    return "swinging"
        return "waiting" if self._core.is_waiting else "idle"
