"""Mistakes in a user's data, gathered so that several are told at once, each with its place."""

from __future__ import annotations

from bus.errors import ConfigError

MAX_COMPLAINTS = 5
"""Mistakes told at once; reading ends with the last of them."""


class Complaints:
    """Mistakes found so far in what the setting `setting` names."""

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._found: dict[str, list[str]] = {}
        """Reason -> places."""
        self._advice: dict[str, None] = {}
        self._count = 0

    def add(self, where: str, reason: str, advice: str = "") -> None:
        """One more mistake, at `FILE, LINE`, and what to do about all of its kind. Raises ConfigError, with all, when there are enough."""
        self._found.setdefault(reason, []).append(where)
        if advice:
            self._advice[advice] = None
        self._count += 1
        if self._count >= MAX_COMPLAINTS:
            self._advice["there may be more: reading ended here"] = None
            self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raises ConfigError with all mistakes, if there are any."""
        if self._found:
            said = [_told(places, reason) for reason, places in self._found.items()]
            raise ConfigError("\n".join(f"{self._setting}: {line}" for line in [*said, *self._advice]))


def _told(places: list[str], reason: str) -> str:
    """One reason, with the first place in full."""
    others = [place.rpartition(", ")[2] for place in places[1:]]
    return f"{places[0]}: {reason}" + (f" (also {', '.join(others)})" if others else "")
