"""The boundary that is open: from `StepDone(is_boundary)` (or `BoundaryOpened`) until it is decided.

open ─ first SwitchRequested(answers=v) ─▶ answered ─┬─ can be followed ─▶ decided (TrainGranted | SwitchStarted)
  └─── DeadlineMissed ─▶ given up ───────────────────┴─ cannot ─▶ SwitchRejected ─▶ given up ─▶ TrainGranted
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bus.events import RejectReason, SwitchRequested

GrantReason = Literal["verdict", "deadline", "static", "returned", "rejected"]


@dataclass
class Boundary:
    """What is known of the open boundary, and why the next grant is given."""

    version: int | None = None
    """The boundary that is open; None: none is."""
    verdict: tuple[int, SwitchRequested] | None = None
    """(position, event) of its answer."""
    given_up: bool = False
    """No verdict will be followed: the trainer trains on."""
    grant_reason: GrantReason = "returned"

    def open(self, version: int) -> None:
        """A new boundary, without an answer."""
        self.version = version
        self.verdict = None
        self.given_up = False
        self.grant_reason = "returned"

    def close(self) -> None:
        """It was decided."""
        self.version = None
        self.verdict = None
        self.given_up = False

    @property
    def is_asking(self) -> bool:
        """Open, and nothing has answered it."""
        return self.version is not None and self.verdict is None and not self.given_up

    def answer(self, position: int, event: SwitchRequested) -> RejectReason | None:
        """Takes a verdict; only the first one for the open boundary counts."""
        if event.answers != self.version or not self.is_asking:
            return "late"
        self.verdict = (position, event)
        return None

    def miss(self, version: str) -> None:
        """The policy did not answer in time."""
        if self.is_asking and version == str(self.version):
            self.given_up = True
            self.grant_reason = "deadline"

    def ask_nobody(self) -> None:
        """Whether boundaries are asked was changed while it is open: one without a verdict gets none any more."""
        if self.is_asking:
            self.given_up = True
            self.grant_reason = "static"

    def reject(self, request: int) -> None:
        """The verdict at position `request` cannot be followed."""
        if self.verdict is not None and self.verdict[0] == request:
            self.verdict = None
            self.given_up = True
            self.grant_reason = "rejected"
