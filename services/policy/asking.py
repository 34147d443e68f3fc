"""Asking a run for another policy, and hearing what came of it.

ask ─▶ PolicyRequested ─▶ whoever keeps the run's policies ─▶ wait_for: attached | detached | refused | ended | None, nobody in time
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from bus.entry import Draft, Entry, Producer
from bus.events import PolicyAttached, PolicyDetached, PolicyRefused, PolicyRequested, RunEnded, ServiceLost
from bus.log import Log
from services.policy.core import SOURCE, source_of

OPERATOR = Producer("operator", 0)
READ_LIMIT = 500
BLOCK_MS = 200


class Reading(Protocol):
    """What is read of a `bus.log.Log`, or of a `bus.history.History`."""

    def read(self, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        """Entries after a position."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a request. `entry` says it: PolicyAttached, PolicyDetached (or ServiceLost), PolicyRefused, RunEnded."""

    how: Literal["attached", "detached", "refused", "ended"]
    entry: Entry

    @property
    def detail(self) -> str:
        """Why it was refused; empty otherwise."""
        return self.entry.event.detail if isinstance(self.entry.event, PolicyRefused) else ""


def ask(log: Log, request: PolicyRequested) -> int:
    """Appends the request; returns its position. Raises LogError."""
    return log.append(OPERATOR, [Draft(request, derived=False, cause=0, at=time.time_ns())])


def wait_for(
    reading: Reading,
    position: int,
    request: PolicyRequested,
    patience_s: float,
    tell: Callable[[float], None] = lambda seconds: None,
    clock: Callable[[], float] = time.monotonic,
    since: int | None = None,
) -> Outcome | None:
    """The outcome of the request at `position`; None: there is none after `patience_s`, nobody may be there to keep policies.

    `since`: up to where the log was known when it was asked; the run may have ended in between.
    `tell` is told, now and then, how many seconds it has been waited. A promotion is over with its PolicyAttached; its shadow detaches
    by itself then. Raises LogError.
    """
    began, after = clock(), position if since is None else since
    while (waited := clock() - began) < patience_s:
        tell(waited)
        for entry in reading.read(after, READ_LIMIT, BLOCK_MS):
            after = entry.position
            how = _what_it_says(entry, position, request)
            if how is not None:
                return Outcome(how, entry)
    return None


def _what_it_says(entry: Entry, position: int, request: PolicyRequested) -> Literal["attached", "detached", "refused", "ended"] | None:
    match entry.event:
        case PolicyAttached() as event if event.request == position:
            return "attached"
        case PolicyRefused() as event if event.request == position:
            return "refused"
        case PolicyDetached() if request.action == "detach" and entry.source == source_of(request.label, "shadow"):
            return "detached"
        case ServiceLost(restarting=False) as event if request.action == "detach" and event.service == f"{SOURCE}:{request.label}":
            return "detached"
        case RunEnded():
            return "ended"
        case _:
            return None
