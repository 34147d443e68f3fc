"""What can be said of a service's end where it ran: its exit, its last words, and whether its disk is full."""

from __future__ import annotations

from bus.disk import free_bytes, room
from services.launcher.protocol import RunPlace

DETAIL_CHARACTERS = 300
TAIL_BYTES = 4096
FULL_BYTES = 64 * 1024
"""A disk with less room than this is called full."""


def exit_of(code: int) -> str:
    """An exit code (negative: the signal) in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def how_it_ended(place: RunPlace, log_name: str, code: int, where: str = "") -> str:
    """Its exit, `where` that was if it needs to be said, and what a service with this log file said last."""
    on = f" on {where}" if where else ""
    return f"{exit_of(code)}{on}{last_words(place, log_name)}{_full_disk(place)}"


def last_words(place: RunPlace, log_name: str) -> str:
    """The end of a service's log file, for the message."""
    try:
        with place.log_file(log_name).open("rb") as file:
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
