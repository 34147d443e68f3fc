"""What is known of a process that is looked after."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from services.launcher.protocol import Handle, ServiceSpec
from services.launcher.restarts import Restarts

TOKEN_BYTES = 8


def new_token() -> str:
    """What an incarnation is known by: a process on another machine may have the same number as one here."""
    return secrets.token_hex(TOKEN_BYTES)


@dataclass
class Child:
    """One service, over all its incarnations."""

    spec: ServiceSpec
    restarts: Restarts
    handle: Handle | None = None
    token: str = ""
    """What the first word of the running incarnation is known by."""
    spawned_at: float = 0.0
    epoch: int = 0
    """Of the running incarnation; 0: it has not said its first word yet."""
    cause: int = 0
    """Position of its first word, or of the request to kill it."""
    due_at: float | None = None
    """When it is started again."""

    def spawned(self, handle: Handle, now: float, token: str = "") -> None:
        """A new incarnation has been started."""
        self.handle, self.token = handle, token
        self.spawned_at, self.due_at, self.epoch, self.cause = now, None, 0, 0

    @property
    def runs(self) -> bool:
        """Its process has not ended."""
        return self.handle is not None and self.handle.poll() is None


@dataclass
class Kept(Child):
    """An attached policy, or one that is being restarted."""

    suspect_at: float | None = None
    """It should have answered; if it says nothing until then, it hangs."""
    answered: int = -1
    """Newest boundary that it answered."""
    leaves: bool = False
    """It is to end by itself, and not to come back."""
    spoke: bool = False
    """This incarnation has decided something."""
    hangs: bool = False
    """It was killed because it did."""
