"""What a run's log says of its policies: read once, and kept up to date by whoever asks for a change.

recording (without the nine in ten entries that are answers) ─▶ the log from there on ─▶ PolicyState
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bus.books import Books
from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import KINDS, RunEnded
from bus.history import History
from bus.recording import FILE_NAME, Recording
from bus.requests import ANSWERING
from services.cli.source import Source
from services.launcher.folders import FoundRun
from services.monitor.policy_history import PolicyHistory
from services.monitor.shadows import ShadowComparisons
from services.policy.roster import Roster

READ_LIMIT = 1000
READ_KINDS = tuple(kind for kind, event in KINDS.items() if event not in ANSWERING)
Tell = Callable[[str, int, int], None]
"""(what is done, how far it is, of how much)."""


@dataclass
class PolicyState:
    """Who decides, who watches, and how shadows compare."""

    books: Books = field(default_factory=Books)
    history: PolicyHistory = field(default_factory=PolicyHistory)
    shadows: ShadowComparisons = field(default_factory=ShadowComparisons)
    roster: Roster = field(default_factory=Roster)
    ended: RunEnded | None = None
    position: int = 0

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        self.position = entry.position
        if type(entry.event) in ANSWERING:
            return
        self.books.apply(entry.event)
        self.history.apply(entry, self.shadows.next_boundary)
        self.shadows.apply(entry, self.books, self.history)
        self.roster.apply(entry)
        if isinstance(entry.event, RunEnded):
            self.ended = entry.event

    @property
    def is_asked(self) -> bool:
        """Boundaries are put to a policy in this run."""
        plan = self.books.plan
        return plan is not None and bool(plan.hybrid) and plan.use_dynamic_resource_scheduling


def read_state(found: FoundRun, source: Source, tell: Tell = lambda what, done, total: None) -> PolicyState:
    """Folds all that is there now. Raises GapError, LogChanged, CodecError; ConfigError for a log without a plan."""
    state, last = PolicyState(), source.last_position()
    for entry in _entries(found, source, last):
        state.apply(entry)
        if entry.position % READ_LIMIT == 0:
            tell("reading the log", entry.position, last)
    tell("reading the log", last, last)
    if state.books.plan is None:
        raise ConfigError(f"the log of run {found.run} has no plan yet: `swingshift plan` or `swingshift run` begin one")
    return state


def catch_up(state: PolicyState, source: Source, last: int) -> None:
    """Takes in what came since, up to `last`."""
    for entry in _following(source, state.position, last):
        state.apply(entry)


def _entries(found: FoundRun, source: Source, last: int) -> Iterator[Entry]:
    after = 0
    if (found.folder / FILE_NAME).is_file():
        with Recording.open(found.folder) as recording:
            # A recording of another log under this name is not read.
            if not isinstance(source, History) or recording.log_id == source.log_id:
                after = min(last, recording.last_position())
                yield from (row.entry() for row in recording.rows(1, after, READ_KINDS))
    yield from _following(source, after, last)


def _following(source: Source, after: int, last: int) -> Iterator[Entry]:
    while after < last:
        entries = source.read(after, min(READ_LIMIT, last - after))
        if not entries:
            return
        after = entries[-1].position
        yield from entries
