"""Which policies a run has, folded from its log: the active one, the one before it, the shadows, and what was asked for and is not done.

PolicyRequested ─▶ open ─┬─ PolicyAttached(request) ─▶ active (the one before: former), or a shadow
                         ├─ PolicyRefused(request)
                         └─ detach: PolicyDetached, or ServiceLost without a restart ─▶ no shadow any more
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from bus.entry import Entry
from bus.events import PolicyAttached, PolicyDetached, PolicyRefused, PolicyRequested, ServiceLost
from services.policy.core import label_of

KINDS = tuple(event.kind for event in (PolicyAttached, PolicyDetached, PolicyRefused, PolicyRequested, ServiceLost))
"""All that the fold looks at."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A policy that attached, and where."""

    position: int
    epoch: int
    event: PolicyAttached


class Roster:
    """Feed it the log's entries (those of KINDS are enough) once, in order."""

    def __init__(self) -> None:
        self.active: Attachment | None = None
        """Its newest incarnation."""
        self.former: Attachment | None = None
        """The one that was active before the present one."""
        self.shadows: dict[str, Attachment] = {}
        """Label -> its newest incarnation; those that were promoted, or have ended, are not among them."""
        self.open: dict[int, PolicyRequested] = {}
        """Position -> request without an outcome, in order."""
        self.labels: dict[str, None] = {}
        """Labels that shadows have had."""

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        match event:
            case PolicyRequested():
                self.open[entry.position] = event
            case PolicyRefused():
                self.open.pop(event.request, None)
            case PolicyAttached(mode="active"):
                self._activate(Attachment(entry.position, entry.epoch, event))
            case PolicyAttached():
                label = label_of(entry.source)
                self.shadows[label] = Attachment(entry.position, entry.epoch, event)
                self.labels[label] = None
                self.open.pop(event.request, None)
            case PolicyDetached():
                self._end(label_of(entry.source))
            case ServiceLost(restarting=False):
                self._end(label_of(event.service))
            case _:
                pass

    def _activate(self, attachment: Attachment) -> None:
        event = attachment.event
        if self.active is not None and _choice(self.active.event) != _choice(event):
            self.former = self.active
        self.active = attachment
        self.open.pop(event.request, None)
        shadow = self.shadows.get(event.label)
        if shadow is not None and shadow.event.request < event.request:
            self._end(event.label)

    def _end(self, label: str) -> None:
        if self.shadows.pop(label, None) is not None:
            self.open = {position: asked for position, asked in self.open.items() if asked.action != "detach" or asked.label != label}

    def free_label(self, wanted: str) -> str:
        """`wanted`, or the first of `wanted-2`, `wanted-3`, … that no shadow of this run has had."""
        return next(label for label in _candidates(wanted) if label not in self.labels)


def roster_of(entries: Iterable[Entry]) -> Roster:
    """The roster after these entries."""
    roster = Roster()
    for entry in entries:
        roster.apply(entry)
    return roster


def _candidates(wanted: str) -> Iterator[str]:
    yield wanted
    for number in count(2):
        yield f"{wanted}-{number}"


def _choice(event: PolicyAttached) -> tuple[int, str, str]:
    """The same for all incarnations of one choice: a restart is none."""
    return event.request, event.name, str(sorted(event.params.items()))
