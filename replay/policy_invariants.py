"""What must hold of policies at every position of a log: what attaches is what was planned or asked for, to the letter of its file."""

from __future__ import annotations

from bus.entry import Entry
from bus.events import PolicyAttached, PolicyRequested, RunPlanned


class PolicyInvariants:
    """Fold of a whole log; `apply` returns what an entry breaks, in words."""

    def __init__(self) -> None:
        self._sources: dict[int, str] = {}
        """Position of what asked for a policy (0: the plan) -> the text of its file."""

    def apply(self, entry: Entry) -> list[str]:
        """Takes in one entry."""
        match entry.event:
            case RunPlanned(policy_source=source):
                self._sources[0] = source
            case PolicyRequested(source=source):
                self._sources[entry.position] = source
            case PolicyAttached() as event:
                return self._check(event)
            case _:
                pass
        return []

    def _check(self, event: PolicyAttached) -> list[str]:
        asked = self._sources.get(event.request)
        if asked is None:
            return [f"{event.name} attached for entry {event.request}, which asked for no policy"]
        if event.source != asked:
            whose = "planned" if event.request == 0 else f"asked for by entry {event.request}"
            return [f"the text of {event.name} that attached is not the one that was {whose}"]
        return []
