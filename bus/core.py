"""The deterministic part of a service: what it decides, from the log alone.

A core does no I/O and reads no clock. The host (`bus.host`) feeds it every entry in order and appends what it decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.entry import Entry
from bus.events import Event


@dataclass(frozen=True, slots=True)
class Deadline:
    """What `key` names must have happened within `seconds` of when the shell first saw this deadline."""

    key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Request:
    """Something the shell must do that has no outcome yet. `key` is its natural key, `cause` the entry that led to it."""

    key: str
    cause: int


class Core(Protocol):
    """Part of a service without I/O. `apply` is the only place where state changes."""

    source: str

    def apply(self, entry: Entry) -> None:
        """Takes in one entry: others' entries and its own. Of own derived entries it uses the event only."""

    def decide(self) -> Event | None:
        """What should be done now, read from the state only; None: nothing."""

    def outstanding(self) -> Sequence[Request]:
        """Requests to this service without an outcome, in the order in which they should be performed."""

    def deadlines(self) -> Sequence[Deadline]:
        """What must have happened by when."""
