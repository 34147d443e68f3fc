"""`swingshift record RUN -o DIR`: one more recording of a run, by hand.

server ─▶ entries and payloads ─────────────────────────────────────────────┬─▶ DIR        (an observer: it holds nothing back)
the run's own recording, or its archiver, for what the server has forgotten ┘
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from bus.embedded import folder_url
from bus.errors import ConfigError
from bus.history import History
from bus.payload_history import PayloadHistory
from bus.recall import Recall
from bus.recording import Recording, Row
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.run_recorder import RunRecorder
from services.archiver.archiver import Archiver
from services.archiver.attendance import KINDS, Attendance
from services.archiver.origin import CODE, record_origin
from services.archiver.policy_sources import PolicySources
from services.cli.byte_bar import ByteBar
from services.cli.mistakes import INTERRUPTED, mistakes_explained
from services.cli.source import find
from services.context import read_plan
from services.launcher.folders import SERVER, FoundRun, write_info
from services.launcher.run import write_summary
from services.local_settings import INFO

PATIENCE_S = 10.0
"""How long an archiver is waited for that has what the server has forgotten."""
GRACE_S = 5.0
"""How long the last words of others are waited for when the run has ended."""


def record_command(named: str, redis: str | None, runs: Path, to: Path) -> None:
    """Records until the run has ended; Ctrl-C ends it before, and the same command goes on with it."""
    from services.monitor.summary import summarise

    with mistakes_explained():
        found = find(named, runs, redis)
        _check(found, to)
        logging.basicConfig(format="swingshift: %(levelname)s: %(message)s", level=logging.WARNING)
        recorded = record(found, to)
        if recorded.ended:
            write_summary(to, summarise)
    how = "all of it" if recorded.ended else "the same command goes on with it"
    typer.echo(f"run {found.run} is recorded in {to}: entries 1 to {recorded.position}, {how}")
    raise typer.Exit(0 if recorded.ended else INTERRUPTED)


def _check(found: FoundRun, to: Path) -> None:
    if found.url is None:
        raise ConfigError(
            f"no server is known that has run {found.run}: name it with --redis URL. A run that has ended is recorded in its folder "
            f"already, {found.folder}: copy that"
        )
    if to.absolute().resolve() == found.folder.resolve():
        raise ConfigError(f"{to} is the folder of the run itself, where its archiver records: name another one with -o DIR")


@dataclass(frozen=True, slots=True)
class Recorded:
    """How far a recording got, and whether the run ended in it."""

    position: int
    ended: bool


def record(found: FoundRun, to: Path) -> Recorded:
    """Records into `to` until the run has ended or Ctrl-C comes. Raises ConfigError, LogError, ServerError."""
    assert found.url is not None
    with (
        RedisLog.open(found.url, found.run) as log,
        closing(RedisBlobs(found.url, found.run)) as blobs,
        closing(Recall(found.url, found.run, PATIENCE_S)) as recall,
    ):
        history = History(log, found.folder, recall.rows)
        with RunRecorder.open(to, found.run, log.log_id, PayloadHistory(blobs, found.folder, recall.payloads)) as recorder:
            try:
                _record_beginning(found, to)
                policies = _policies(to)
                with RowBar(found.run, log.last_position, recorder.last_position) as bar:

                    def watch(rows: Sequence[Row]) -> None:
                        bar.take(rows)
                        policies.take(rows)

                    Archiver(history, recorder, None, _attendance(to), GRACE_S, watch=watch).run()
            except KeyboardInterrupt:
                return Recorded(recorder.last_position, ended=False)
            return Recorded(recorder.last_position, ended=True)


def _record_beginning(found: FoundRun, to: Path) -> None:
    """What the run began with, and how it is found again."""
    assert found.url is not None
    plan = read_plan(found.url, found.run, found.folder)
    if not (to / INFO).exists():
        # A server in the run's own folder ends with the run.
        server = None if found.url == folder_url(found.folder / SERVER) else found.url
        write_info(to, found.run, server, json.loads(plan.config))
    with ByteBar("initial model") as bar:
        record_origin(plan, to, bar.show, found.folder)


def _attendance(folder: Path) -> Attendance:
    """As it is at the newest entry that is recorded already."""
    attendance = Attendance()
    with Recording.open(folder) as recording:
        for row in recording.rows(kinds=KINDS):
            attendance.apply(row.entry())
    return attendance


def _policies(folder: Path) -> PolicySources:
    """Those that are recorded already are written."""
    policies = PolicySources(folder / CODE)
    with Recording.open(folder) as recording:
        policies.recover(recording)
    return policies


class RowBar:
    """How many entries of a run are recorded, within its `with` block."""

    def __init__(self, run: str, newest: Callable[[], int], recorded: int) -> None:
        self._newest = newest
        self._recorded = recorded
        self._progress = Progress(TextColumn("recording {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("entries"))
        self._task = self._progress.add_task(run, total=None, completed=recorded)

    def __enter__(self) -> RowBar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def take(self, rows: Sequence[Row]) -> None:
        """These are recorded."""
        self._recorded += len(rows)
        self._progress.update(self._task, completed=self._recorded, total=max(self._newest(), self._recorded))
