"""`swingshift run` from a configuration to an ended run.

configuration ▸ folder ▸ initial model ▸ server ▸ log with the plan ▸ supervisor ▸ rest of the recording ▸ summary.json
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bus.entry import Entry
from bus.errors import ConfigError, LogError, LogMissing, ServerError
from bus.events import RunPlanned
from bus.log import Log
from bus.recorder import Recorder
from bus.recording import Recording
from bus.redis_log import RedisLog
from bus.server import server
from services.advice import advice
from services.config import RunConfig
from services.data.planning import plan_data
from services.launcher.folders import MODELS, SERVER, SUMMARY, make_run_folder, record_reward, remove_shm_folder, write_info
from services.launcher.in_process import ThreadLauncher
from services.launcher.interrupts import Interrupts, StopNow
from services.launcher.local import LocalLauncher
from services.launcher.prepare import WarmStartStep, with_model
from services.launcher.protocol import Launcher, RunPlace
from services.launcher.supervisor import Outcome, Supervisor, services_of
from services.logs import log_to_file
from services.plan import plan_run

logger = logging.getLogger(__name__)

READ_LIMIT = 512

Summarise = Callable[[Sequence[Entry]], Mapping[str, object]]


class Screen(Protocol):
    """What shows the user how a run is doing."""

    def warm_start(self, step: WarmStartStep) -> None:
        """The built-in model is being made."""

    def reading(self, setting: str, prompts: int) -> None:
        """The files that `setting` names are read; so many prompts so far."""

    def begin(self, plan: RunPlanned, place: RunPlace) -> None:
        """The log is there, services start."""

    def take(self, entries: Sequence[Entry]) -> None:
        """New entries."""

    def end(self) -> None:
        """Nothing more will come; called once, however the run ended."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """An ended run. `summary` is None when not even its log could be read."""

    run: str
    folder: Path
    outcome: Outcome
    summary: Mapping[str, object] | None


def plan_in_folder(config: RunConfig, run: str, screen: Screen) -> tuple[RunPlanned, Path]:
    """Makes the run's folder and the initial model; returns the plan and the folder. Raises ConfigError and leaves nothing then."""
    try:
        data = plan_data(config, screen.reading)
        plan_run(config, run, data=data)  # mistakes are told before the warm start, not after it
        folder = make_run_folder(config.folder, run)
        try:
            plan = plan_run(with_model(config, config.folder / MODELS, screen.warm_start), run, data=data)
            record_reward(config.data.reward, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except BaseException:
        screen.end()
        raise
    return plan, folder


def refuse_known_run(url: str | None, run: str) -> None:
    """Raises ConfigError when a server that the user named has a log of this run already."""
    if url is None:
        return
    try:
        RedisLog.open(url, run).close()
    except LogMissing:
        return
    raise ConfigError(f"there is a run {run!r} on that server already: choose another id with --run")


def run(config: RunConfig, run_id: str, named: str | None, screen: Screen, summarise: Summarise, *, in_process: bool = False) -> RunResult:
    """Runs a whole run. `named`: URL of a server, None for an embedded one. Raises ConfigError, ServerError before anything was started."""
    with Interrupts() as interrupts:
        refuse_known_run(named, run_id)
        plan, folder = plan_in_folder(config, run_id, screen)
        with server(named, folder / SERVER) as url, RedisLog.create(url, plan, time.time_ns()) as log:
            place = RunPlace(url, run_id, folder)
            write_info(folder, run_id, named, json.loads(plan.config))
            log_to_file(place.log_file("supervisor"))
            for text in advice(config):
                logger.warning("%s", text)
            screen.begin(plan, place)
            try:
                outcome = supervise(log, place, plan, config, screen, interrupts, in_process=in_process)
            finally:
                screen.end()
                remove_shm_folder(run_id)
            whole = complete_recording(log, folder)
            return RunResult(run_id, folder, outcome, write_summary(log, folder, summarise, whole))


def supervise(
    log: Log, place: RunPlace, plan: RunPlanned, config: RunConfig, screen: Screen, interrupts: Interrupts, *, in_process: bool
) -> Outcome:
    """Runs the services to their end. A lost log, or an impatient user, is an outcome, too; nobody is left behind."""
    launcher: Launcher = ThreadLauncher(place) if in_process else LocalLauncher(place)
    supervisor = Supervisor(place, log, launcher, config.supervisor, screen.take)

    def ask() -> None:
        supervisor.stop_asked = "interrupted"

    interrupts.ask = ask
    try:
        with supervisor:
            return supervisor.run(services_of(plan))
    except StopNow:
        return Outcome("killed", "interrupted twice")
    except LogError as error:
        logger.exception("the log was lost: run=%s", place.run)
        return Outcome("log_lost", str(error))


def complete_recording(log: Log, folder: Path) -> bool:
    """Records what the archiver could not: the last words of others that came after its own, or all since it was killed.

    False: the recording stays incomplete.
    """
    try:
        with Recorder.open(folder, log.run, log.log_id) as recorder:
            while entries := log.read(recorder.last_position, READ_LIMIT):
                recorder.append(entries)
    except (LogError, ServerError, ConfigError):
        logger.exception("the recording stays incomplete: folder=%s", folder)
        return False
    return True


def write_summary(log: Log, folder: Path, summarise: Summarise, whole: bool = True) -> Mapping[str, object] | None:
    """Summarises the recording and writes summary.json; None when there is nothing to be read.

    The recording and not the log: what lands after it was closed is not in it, and its last link must be that of the summary. So there is
    no file for a recording that is not `whole`, which a later archiver may complete.
    """
    entries = whole_log(log, folder)
    if not entries:
        return None
    summary = summarise(entries)
    if not whole:
        return summary
    partial = folder / f"{SUMMARY}.partial"
    try:
        partial.write_text(json.dumps(summary, indent=1) + "\n")
        partial.replace(folder / SUMMARY)
    except OSError:
        partial.unlink(missing_ok=True)
        logger.exception("the summary cannot be written: folder=%s", folder)
    return summary


def whole_log(log: Log, folder: Path) -> list[Entry]:
    """All entries, from the recording, else from the log; empty when there is neither."""
    try:
        with Recording.open(folder) as recording:
            return list(recording.entries())
    except ConfigError as error:
        logger.warning("the recording cannot be read, reading the log: folder=%s error=%s", folder, error)
    try:
        return list(read_all(log))
    except LogError:
        logger.exception("the log cannot be read: folder=%s", folder)
        return []


def read_all(log: Log) -> Iterator[Entry]:
    """Entries from 1 to the end as it is now."""
    position, last = 0, log.last_position()
    while position < last:
        entries = log.read(position, READ_LIMIT)
        if not entries:
            return
        yield from entries
        position = entries[-1].position


def plan_only(config: RunConfig, run_id: str, url: str, screen: Screen) -> Path:
    """Makes folder, model and log of a run whose services are started one by one (`swingshift plan`); returns the folder."""
    refuse_known_run(url, run_id)
    plan, folder = plan_in_folder(config, run_id, screen)
    RedisLog.create(url, plan, time.time_ns()).close()
    write_info(folder, run_id, url, json.loads(plan.config))
    return folder
