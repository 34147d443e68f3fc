"""Leads a core through a run that was played, as a recovery and a verification do: recorded wins, and `decide` is compared.

It stops wherever the policy in charge was asked; who goes through the moments asks it there, or puts another core in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bus.entry import Entry
from bus.events import Event, PolicyAttached, SwitchRequested
from bus.host import own
from services.policy.core import SOURCE, PolicyCore


@dataclass(frozen=True, slots=True)
class Played:
    """A run, and from where on the tried policy is in charge."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def attached(self) -> int:
        """Position of its PolicyAttached, the last one."""
        return max((entry.position for entry in self.entries if isinstance(entry.event, PolicyAttached)), default=len(self.entries) + 1)


@dataclass(frozen=True, slots=True)
class Moment:
    """The core has taken in everything up to `position`, and is asked. `recorded`: what it answered then."""

    position: int
    version: int
    """The newest boundary."""
    recorded: Event | None

    @property
    def is_boundary(self) -> bool:
        """It answered a boundary."""
        return isinstance(self.recorded, SwitchRequested) and self.recorded.answers is not None


def plainly(action: Callable[[], None]) -> None:
    """Does it."""
    action()


class Led:
    """`core` may be replaced between two moments. `around`: what is put around each application of an entry."""

    def __init__(self, core: PolicyCore, played: Played, around: Callable[[Callable[[], None]], None] = plainly) -> None:
        self.core = core
        self._played = played
        self._around = around

    def moments(self) -> Iterator[Moment]:
        """Every one, in order. Raises what the core raises."""
        attached = self._played.attached
        decided: dict[int, list[Event]] = {}
        for entry in self._played.entries:
            if _is_decision(entry):
                decided.setdefault(entry.cause, []).append(entry.event)
        for entry in self._played.entries:
            if not _is_decision(entry):
                self._apply(entry)
            for event in decided.get(entry.position, ()):
                if entry.position >= attached:
                    yield self._moment(entry.position, event)
                self._apply(own(self.core, event, entry.position))
            if entry.position >= attached and not self.core.view.ended:
                yield self._moment(entry.position, None)

    def _apply(self, entry: Entry) -> None:
        self._around(lambda: self.core.apply(entry))

    def _moment(self, position: int, recorded: Event | None) -> Moment:
        boundary = self.core.view.boundary
        return Moment(position, -1 if boundary is None else boundary.version, recorded)


def _is_decision(entry: Entry) -> bool:
    return entry.derived and entry.source == SOURCE
