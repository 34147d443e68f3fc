"""The state of every core at any position of a recording.

    newest snapshot at or before the position ─▶ thaw ─▶ the entries from there on ─▶ state
    none of this code's ─▶ a fresh core ─▶ all entries, and snapshots on the way, so that the next look is quick

The state at p holds all entries up to p and all own decisions on them, wherever these stand in the log. It is that of this checkout's
code; what is recorded wins, as in every recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bus.core import Core
from bus.entry import Entry
from bus.errors import CodecError, ConfigError, CoreError, LogError, PolicyFailed
from bus.events import PolicyAttached, ServiceStarted, StepDone
from bus.host import rebuild_in_order
from bus.recording import Recording, Row
from bus.snapshot import freeze, thaw
from bus.snapshot_table import SNAPSHOT_EVERY, Snapshot, SnapshotTable, core_code
from replay.core_check import CONFUSED, Subject
from replay.limit import within_limit
from replay.lookahead import Attached
from replay.pattern import Pattern
from replay.subjects import subjects as of_checkout

logger = logging.getLogger(__name__)

Track = Callable[[Iterable[int], int, int], Iterable[int]]
"""(positions that stretches of the log end at, where the first begins, where the last ends) -> the same, while somebody watches."""


BEGINNINGS = (ServiceStarted.kind, PolicyAttached.kind)
Subjects = Callable[[Sequence[Attached]], Sequence[Subject]]
"""(policies that attach) -> the cores to look at."""


def untracked(ends: Iterable[int], first: int, last: int) -> Iterable[int]:
    """Nobody watches."""
    return ends


@dataclass
class _Traveller:
    """A core on its way through the log."""

    core: Core
    code: str
    at: int
    """Its position; 0 before the first entry."""
    behind: tuple[int, str] = (0, "")
    """Position and chain of the last entry that is in its state: there, or a decision on what is before that stands after it."""
    ahead: tuple[int, int] = (0, 0)
    """Position and cause of an own decision that lies ahead: nothing before it in the log decides on anything before that cause."""
    failed: bool = False
    """A policy's own code raised on the way."""


class Travel:
    """One recording, to be looked at anywhere; `open` makes one. `last` is the position of its newest entry."""

    def __init__(
        self, recording: Recording, snapshots: SnapshotTable, subjects: Sequence[Subject], track: Track = untracked,
        every: int = SNAPSHOT_EVERY,
    ) -> None:  # fmt: skip
        self.recording = recording
        self.last = recording.last_position()
        self._snapshots = snapshots
        self._subjects = {subject.source: subject for subject in subjects}
        self._track = track
        self._every = every
        self._travellers: dict[str, _Traveller] = {}
        self._stack = ExitStack()

    @classmethod
    def open(cls, folder: Path, track: Track = untracked, subjects: Subjects = of_checkout, every: int = SNAPSHOT_EVERY) -> Travel:
        """`every`: entries between the snapshots that it leaves behind.

        Raises ConfigError when there is no recording in `folder`, LogError when it is damaged.
        """
        with ExitStack() as stack:
            recording = stack.enter_context(Recording.open(folder))
            snapshots = stack.enter_context(SnapshotTable.open(folder))
            travel = cls(recording, snapshots, subjects(attached_policies(recording)), track, every)
            travel._stack = stack.pop_all()
            return travel

    def __enter__(self) -> Travel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def sources(self) -> tuple[str, ...]:
        """Who has a core."""
        return tuple(self._subjects)

    def check(self, position: int) -> int:
        """Returns `position`. Raises ConfigError when the recording has no such entry."""
        if not 1 <= position <= self.last:
            raise ConfigError(f"{self.recording.path} has no entry {position}: it has those from 1 to {self.last}")
        return position

    def position_of_step(self, step: int) -> int:
        """Where the StepDone of `step` stands. Raises ConfigError when it is not there."""
        newest = self.recording.newest(StepDone.kind, self.last)
        low, high = 1, self.last
        while low < high:
            middle = (low + high) // 2
            row = self.recording.newest(StepDone.kind, middle)
            if row is not None and _step(row.entry()) >= step:
                high = middle
            else:
                low = middle + 1
        found = self.recording.entry(low).event
        if isinstance(found, StepDone) and found.step == step:
            return low
        last = 0 if newest is None else _step(newest.entry())
        raise ConfigError(f"step {step} is not in {self.recording.path}: it has steps 1 to {last}, and `--at POSITION` for any entry")

    def cores(self, position: int, sources: Sequence[str]) -> dict[str, Core]:
        """The cores of `sources` as they were at `position`; they belong to the caller until the next call."""
        self.check(position)
        found = {source: self._traveller(source, position) for source in sources}
        self._go(list(found.values()), position)
        self._travellers.update(found)
        return {source: traveller.core for source, traveller in found.items()}

    def find(self, pattern: Pattern, after: int) -> int:
        """Where the first entry after `after` is like the pattern. Raises ConfigError when there is none."""
        at = after
        for end in self._track(_stretches(at, self.last, self._every), at, self.last):
            for row in self.recording.rows(at + 1, end, pattern.kinds):
                if pattern.matches(row.entry()):
                    return row.position
            at = end
        raise ConfigError(f"no entry of {self.recording.path} after {after} is like {str(pattern)!r}; the last one is {self.last}")

    def newest(self, source: str, position: int, kinds: Sequence[str]) -> Entry | None:
        """The newest entry of one of these kinds by `source`, at or before `position`."""
        found = [row for kind in kinds if (row := self._newest_row(source, kind, position)) is not None]
        return max(found, key=lambda row: row.position).entry() if found else None

    def _newest_row(self, source: str, kind: str, position: int) -> Row | None:
        row = self.recording.newest(kind, position)
        while row is not None and row.source != source:
            row = self.recording.newest(kind, row.position - 1)
        return row

    def started(self, source: str, position: int) -> Entry | None:
        """The first word of the incarnation of `source` that is there at `position`."""
        return self.newest(source, position, BEGINNINGS)

    def code(self, source: str, position: int) -> str:
        """The digest of this checkout's code for what `source` is at `position`."""
        return self._subjects[source].code(self._attached(source, position))

    def _attached(self, source: str, position: int) -> PolicyAttached | None:
        """The policy that `source` is at `position`; None for what is no policy, or before the first."""
        entry = self.newest(source, position, (PolicyAttached.kind,))
        return entry.event if entry is not None and isinstance(entry.event, PolicyAttached) else None

    # --- where a core begins -----------------------------------------------------------------------------------------------------

    def _traveller(self, source: str, position: int) -> _Traveller:
        """The nearest one: where the last look left it, at a snapshot, or at the beginning."""
        subject, attached = self._subjects[source], self._attached(source, position)
        code = core_code(subject.code(attached), attached)
        here = self._travellers.pop(source, None)
        if here is not None and (here.code != code or here.at > position):
            here = None
        fresh = subject.make(attached)
        return self._from_snapshot(source, code, position, here.at if here is not None else 0, fresh) or here or _Traveller(fresh, code, 0)

    def _from_snapshot(self, source: str, code: str, position: int, after: int, fresh: Core) -> _Traveller | None:
        """At the newest snapshot between `after` and `position` that is of use."""
        found = self._snapshots.position_before(source, code, position)
        while found is not None and found > after:
            try:
                snapshot = self._snapshots.get(source, code, found)
                if self.recording.entry(snapshot.through).chain == snapshot.chain:
                    return _Traveller(thaw(snapshot.core, fresh), code, found)
            except (CodecError, LogError) as error:
                logger.warning("snapshot not used: source=%s position=%d error=%s", source, found, error)
            found = self._snapshots.position_before(source, code, found - 1)
        return None

    # --- on the way ----------------------------------------------------------------------------------------------------------------

    def _go(self, travellers: Sequence[_Traveller], position: int) -> None:
        """Takes all of them to `position`, by stretches that end where snapshots belong."""
        at = min((traveller.at for traveller in travellers), default=position)
        far = position - at > self._every
        for end in self._track(_stretches(at, position, self._every), at, position):
            entries = list(self.recording.entries(at + 1, end))
            going = [traveller for traveller in travellers if traveller.at < end]
            for traveller in going:
                self._follow(traveller, entries, end)
            if far and end % self._every == 0:
                self._keep(going)
            at = end

    def _follow(self, traveller: _Traveller, entries: Sequence[Entry], end: int) -> None:
        core, start = traveller.core, traveller.at
        late = self._late(traveller, end)
        ours = (*(entry for entry in entries if entry.derived and entry.source == core.source), *late)
        decisions = sorted((each for each in ours if start < each.cause <= end), key=lambda each: each.cause)
        try:
            if not traveller.failed:
                limited = within_limit(core, self._subjects[core.source].limit_s)
                rebuild_in_order(limited, entries[max(0, start + 1 - entries[0].position) :], decisions, start)
        except PolicyFailed as error:
            # So did that of its process, and of each successor: there is no later state.
            traveller.failed = True
            logger.warning(
                "%s: between entries %d and %d its own code failed, its state is that of then: %s", core.source, start, end, error
            )
        except CONFUSED as error:
            what = f"the core of {core.source} cannot follow this log between entries {start} and {end}: {type(error).__name__}: {error}"
            raise CoreError(f"{what}; `swingshift replay verify` says where it is not as it should be") from error
        last = late[-1] if late else entries[-1]
        traveller.at, traveller.behind = end, (last.position, last.chain)

    def _late(self, traveller: _Traveller, end: int) -> list[Entry]:
        """Decisions on entries up to `end` that stand after it. An incarnation's decisions stand in the order of what they are on."""
        position, cause = traveller.ahead
        if position > end and cause > end:
            return []
        found: list[Entry] = []
        for row in self.recording.rows(end + 1, sources=(traveller.core.source,)):
            begins = row.kind in BEGINNINGS
            if begins or (row.derived and row.cause > end):
                traveller.ahead = (row.position, row.position if begins else row.cause)
                return found
            if row.derived:
                found.append(row.entry())
        traveller.ahead = (self.last + 1, self.last + 1)
        return found

    def _keep(self, travellers: Sequence[_Traveller]) -> None:
        """Writes down where they are; whatever stands in the way of that, the next look only takes longer."""
        if not self._snapshots.writable:
            return
        try:
            kept = [
                Snapshot(each.core.source, each.code, each.at, *each.behind, freeze(each.core)) for each in travellers if not each.failed
            ]
            self._snapshots.put(kept)
        except (CodecError, LogError) as error:
            logger.warning("snapshots not kept: error=%s", error)


def _stretches(at: int, last: int, every: int) -> Iterator[int]:
    """Where the stretches from `at` to `last` end: where snapshots belong, and at the last entry."""
    while at < last:
        at = min(last, (at // every + 1) * every)
        yield at


def attached_policies(recording: Recording) -> list[Attached]:
    """All that attached, in order."""
    found: list[Attached] = []
    row = recording.newest(PolicyAttached.kind, recording.last_position())
    while row is not None:
        event = row.entry().event
        if isinstance(event, PolicyAttached):
            found.append((row.source, event))
        row = recording.newest(PolicyAttached.kind, row.position - 1)
    return found[::-1]


def _step(entry: Entry) -> int:
    assert isinstance(entry.event, StepDone)
    return entry.event.step
