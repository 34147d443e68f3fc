"""What a run that goes on must know of what it had, from one reading of its recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from bus.entry import Entry
from bus.errors import ConfigError
from bus.evaluations import Evaluations
from bus.events import (
    BatchFormed,
    CheckpointSaved,
    DeadlineMissed,
    EvalDone,
    EvalRequested,
    ReplicaFailed,
    ReplicaLost,
    RoutesCut,
    RunEnded,
    RunPlanned,
    ServiceStarted,
    SettingChanged,
    StepDone,
    StopRequested,
    WeightsPublished,
)
from bus.recording import Recording
from bus.settings import Settings
from services.archiver import attendance, payload_lives
from services.archiver.attendance import Attendance
from services.archiver.payload_lives import PayloadLives
from services.policy import roster
from services.policy.roster import Roster
from services.trainer.kept import KeptCheckpoints

EVALUATION_KINDS = tuple(
    event.kind
    for event in (
        DeadlineMissed, EvalDone, EvalRequested, ReplicaFailed, ReplicaLost, RoutesCut, RunPlanned, ServiceStarted, SettingChanged,
        WeightsPublished,
    )
)  # fmt: skip
OWN_KINDS = tuple(event.kind for event in (BatchFormed, CheckpointSaved, RunEnded, StepDone, StopRequested))
KINDS = tuple(dict.fromkeys((*attendance.KINDS, *payload_lives.KINDS, *roster.KINDS, *EVALUATION_KINDS, *OWN_KINDS)))
SHOWN_EVERY = 2_000

Progress = Callable[[int, int], None]
"""Entries read so far, and all of them."""


class Past:
    """Fold of a recorded history. Feed it every entry of `KINDS` once, in order."""

    def __init__(self) -> None:
        self.attendance = Attendance()
        self.lives = PayloadLives()
        self.roster = Roster()
        self.evaluations = Evaluations()
        self.publications: dict[int, WeightsPublished] = {}
        """Version -> its newest revision."""
        self.checkpoints: list[tuple[int, CheckpointSaved]] = []
        """(position, event), in order."""
        self.kept = KeptCheckpoints()
        self.formed: dict[int, int] = {}
        """Step -> position of its batch."""
        self.steps_done = 0
        self.ended: tuple[int, RunEnded] | None = None
        """Position and event."""
        self.stop_position: int | None = None
        """Where the run was first asked to end."""
        self.position = 0
        self._plan: RunPlanned | None = None

    @classmethod
    def read(cls, folder: Path, progress: Progress) -> Past:
        """Raises ConfigError, LogError, CodecError."""
        past = cls()
        with Recording.open(folder) as recording:
            last = recording.last_position()
            past.take((row.entry() for row in recording.rows(kinds=KINDS)), last, progress)
        past.position = last
        return past

    @property
    def plan(self) -> RunPlanned:
        """The run's plan, as it was planned. Raises ConfigError when the history does not begin with one."""
        if self._plan is None:
            raise ConfigError("the recording does not begin with a plan: it was not made by swingshift")
        return self._plan

    @property
    def settings(self) -> Settings:
        """What was changed on the live run."""
        return self.evaluations.settings

    def take(self, entries: Iterable[Entry], last: int, progress: Progress) -> None:
        """Takes in entries, and tells how far it is."""
        for number, entry in enumerate(entries):
            self.apply(entry)
            if number % SHOWN_EVERY == 0:
                progress(entry.position, last)
        progress(last, last)

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        self.attendance.apply(entry)
        self.lives.apply(entry)
        self.roster.apply(entry)
        self.evaluations.apply(entry)
        event = entry.event
        self.kept.apply(event)
        match event:
            case RunPlanned() if self._plan is None:
                self._plan = event
            case BatchFormed():
                self.formed.setdefault(event.step, entry.position)
            case StepDone():
                self.steps_done = event.step
            case WeightsPublished():
                self.publications[event.version] = event
            case CheckpointSaved():
                self.checkpoints.append((entry.position, event))
            case RunEnded() if self.ended is None:
                self.ended = (entry.position, event)
            case StopRequested() if self.stop_position is None:
                self.stop_position = entry.position
            case _:
                pass

    def needed_versions(self) -> list[WeightsPublished]:
        """Publications that replicas may still be told to load, the oldest first."""
        versions = {publication.version for publication in (self.evaluations.current, self.evaluations.waiting) if publication is not None}
        versions |= {max(self.publications)} if self.publications else set()
        return [self.publications[version] for version in sorted(versions)]
