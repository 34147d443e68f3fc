"""The devices while the hybrids have them: since which swing, and when they go back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.books import Books
from bus.events import SwitchRequested, SwitchStarted
from services.controller.replicas import Replicas

ReturnReason = Literal["stop", "no_replica", "give_back", "max_lent", "verdict"]
FORCED = ("starved", "evaluation")
"""Lends that the controller began because nobody else could generate: no verdict shortens them."""


def amended(started: SwitchStarted, event: SwitchRequested) -> SwitchStarted:
    """A lend with the numbers of a newer verdict."""
    floor = started.give_back_at if started.reason in FORCED else 0
    return started.model_copy(update={"give_back_at": max(floor, event.give_back_at), "max_lent_s": event.max_lent_s or started.max_lent_s})


@dataclass
class Lent:
    """A lend between its SwitchDone and the swing back."""

    started: SwitchStarted
    """With what amendments changed."""
    woken: dict[str, int]
    """Replicas that got a WakeRequested, with their epochs."""
    wanted_back: bool = False
    """The policy asked for the devices."""
    too_long: bool = False
    """max_lent_s has passed."""

    def why_return(self, books: Books, replicas: Replicas, evaluating: bool) -> ReturnReason | None:
        """Why the devices go back now, if they do: the threshold falls to what can still become ready, so it always comes.

        `evaluating`: the newest version is under evaluation; what was lent for that stays lent until it is done, which has a deadline.
        """
        if books.stop_requested:
            return "stop"
        if not any(replicas.is_awake(name, epoch) for name, epoch in self.woken.items()):
            return "no_replica"
        if evaluating and self.started.reason == "evaluation":
            return None
        ready = len(books.ready)
        if ready >= self.started.give_back_at or not (books.in_flight or books.startable):
            return "give_back"
        if self.too_long:
            return "max_lent"
        return "verdict" if self.wanted_back else None
