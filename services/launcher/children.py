"""What is known of a process that is looked after, and what can be said of its end."""

from __future__ import annotations

from dataclasses import dataclass

from bus.disk import free_bytes, room
from services.launcher.protocol import Handle, RunPlace, ServiceSpec
from services.launcher.restarts import Restarts

DETAIL_CHARACTERS = 300
TAIL_BYTES = 4096
FULL_BYTES = 64 * 1024
"""A disk with less room than this is called full."""


@dataclass
class Child:
    """One service, over all its incarnations."""

    spec: ServiceSpec
    restarts: Restarts
    handle: Handle | None = None
    spawned_at: float = 0.0
    epoch: int = 0
    """Of the running incarnation; 0: it has not said its first word yet."""
    cause: int = 0
    """Position of its first word, or of the request to kill it."""
    due_at: float | None = None
    """When it is started again."""

    def spawned(self, handle: Handle, now: float) -> None:
        """A new incarnation has been started."""
        self.handle = handle
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


def how_it_ended(place: RunPlace, source: str, code: int) -> str:
    """The exit, the process's last words, and whether its disk is full."""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}{_last_words(place, source)}{_full_disk(place)}"


def _last_words(place: RunPlace, source: str) -> str:
    """The end of a service's log file, for the message."""
    try:
        with place.log_file(source).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[-DETAIL_CHARACTERS:]}" if last else ""


def _full_disk(place: RunPlace) -> str:
    """Said here, for a service whose disk is full cannot write into its log file why it ends."""
    folder = place.folder
    return f" ({folder} is on a full disk: {room(folder)})" if free_bytes(folder) < FULL_BYTES else ""
