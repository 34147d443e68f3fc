"""`swingshift run` from a configuration to an ended run.

configuration ▸ folder ▸ initial model ▸ server ▸ launcher ▸ log with the plan ▸ supervisor ▸ rest of the recording ▸ summary.json
                                     (a run that is resumed: services/launcher/resume.py ─▶ ┘)
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from bus.embedded import Say
from bus.entry import Entry
from bus.errors import CodecError, ConfigError, LogError, LogMissing, LogUnavailable, ServerError
from bus.events import RunPlanned
from bus.history import History
from bus.patience import PATIENCE_S
from bus.recording import Recording
from bus.redis_blobs import RedisBlobs
from bus.redis_log import RedisLog
from bus.run_recorder import PayloadSource, Rows, RunRecorder
from bus.server import server
from services.advice import advice
from services.config import RunConfig
from services.data.planning import plan_data
from services.launcher.folders import MODELS, SERVER, SUMMARY, make_run_folder, record_reward, refuse_known_folder, write_info
from services.launcher.interrupts import Interrupts, StopNow
from services.launcher.lock import RunLock
from services.launcher.prepare import WarmStartStep, with_model
from services.launcher.protocol import Launcher, RunPlace, Site
from services.launcher.supervisor import LOG_LOST, Outcome, Supervisor, services_of
from services.logs import log_to_file
from services.plan import plan_run
from services.planned import config_of
from services.policy.roster import Roster

logger = logging.getLogger(__name__)

READ_LIMIT = 512
SHOWN_ENTRIES = 5000
"""Of the history of a run that goes on, so many are shown at a time."""

Summarise = Callable[[Iterable[Entry]], Mapping[str, object]]


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

    def past(self, entries: Sequence[Entry]) -> None:
        """Entries that a run had which goes on: they come first, and are no news."""

    def working(self, what: str, done: int, total: int) -> None:
        """Something that may take a while, before services start."""

    def say(self, text: str) -> None:
        """Something that the user should know now; from any thread."""

    def end(self, *, log_lost: bool = False) -> None:
        """Nothing more will come; called once, however the run ended. `log_lost`: nothing can be appended any more."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """An ended run. `summary` is None when not even its log could be read; `whole`: its recording has all that the log has."""

    run: str
    folder: Path
    outcome: Outcome
    summary: Mapping[str, object] | None
    whole: bool


def plan_in_folder(config: RunConfig, run: str, screen: Screen, site: Site | None) -> tuple[RunPlanned, Path]:
    """Makes the run's folder and the initial model; returns the plan and the folder. Raises ConfigError and leaves nothing then.

    `site`: where the services will be started; None: they are started one by one, by others.
    """
    try:
        refuse_known_folder(config.folder, run)  # before anything that takes long, or that others are asked for
        data = plan_data(config, screen.reading)
        machine = None if site is None else site.machine(config)
        first = plan_run(config, run, machine, data)  # mistakes are told before the warm start, not after it
        if site is not None:
            site.check(first, config, screen.say)
        folder = make_run_folder(config.folder, run)
        try:
            plan = plan_run(with_model(config, config.folder / MODELS, screen.warm_start), run, machine, data)
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


def run(config: RunConfig, run_id: str, named: str | None, screen: Screen, summarise: Summarise, site: Site) -> RunResult:
    """Runs a whole run. `named`: URL of a server, None for an embedded one. Raises ConfigError, ServerError before anything was started."""
    with Interrupts() as interrupts, site:
        refuse_known_run(named, run_id)
        plan, folder = plan_in_folder(config, run_id, screen, site)
        with unless_launched(folder, screen) as launched, RunLock(folder), server(named, folder / SERVER, screen.say) as url:
            place = RunPlace(url, run_id, folder)
            with site.launching(place, plan, config_of(plan), screen.say) as launcher:
                launched()
                with RedisLog.create(url, plan, time.time_ns()) as log:
                    write_info(folder, run_id, named, json.loads(plan.config))
                    return drive(log, place, plan, config, screen, interrupts, summarise, site, launcher)


@contextmanager
def unless_launched(folder: Path, screen: Screen) -> Iterator[Callable[[], None]]:
    """Takes a new run's folder away again when the block fails before it says that there is a place for each service."""
    said: list[bool] = []
    try:
        yield lambda: said.append(True)
    except BaseException:
        if not said:
            screen.end()
            shutil.rmtree(folder, ignore_errors=True)
        raise


def drive(
    log: RedisLog,
    place: RunPlace,
    plan: RunPlanned,
    config: RunConfig,
    screen: Screen,
    interrupts: Interrupts,
    summarise: Summarise,
    site: Site,
    launcher: Launcher,
    *,
    position: int = 0,
    roster: Roster | None = None,
) -> RunResult:
    """Runs the services of a run whose log and folder are there, and leaves a whole recording.

    `position`: where it goes on; `roster`: the policies that it has had.
    """
    log_to_file(place.log_file("supervisor"))
    for text in advice(config):
        logger.warning("%s", text)
    screen.begin(plan, place)
    lost, has_ended = True, False
    try:
        show_history(place.folder, position, screen)
        log.waiting = partial(say_waiting, screen.say)
        outcome = supervise(log, place, plan, config, screen, interrupts, launcher, position=position, roster=roster)
        lost, has_ended = outcome.reason == LOG_LOST, not outcome.can_resume
    finally:
        screen.end(log_lost=lost)
        site.clear(place.run, has_ended=has_ended)
    whole = finish_recording(place, 0.0 if lost else PATIENCE_S)
    return RunResult(place.run, place.folder, outcome, write_summary(place.folder, summarise, whole), whole)


def show_history(folder: Path, last: int, screen: Screen) -> None:
    """Shows what a run had that goes on behind entry `last`."""
    if last == 0:
        return
    with Recording.open(folder) as recording:
        for first in range(1, last + 1, SHOWN_ENTRIES):
            screen.past(list(recording.entries(first, min(last, first + SHOWN_ENTRIES - 1))))


def say_waiting(say: Say, error: LogUnavailable | None, seconds: float) -> None:
    """Tells the user that the run stands still for its server, or goes on."""
    if error is None:
        say("the server answers again")
    else:
        say(f"the run waits for its server, for {seconds:.0f} s at most: {error}")


def supervise(
    log: RedisLog,
    place: RunPlace,
    plan: RunPlanned,
    config: RunConfig,
    screen: Screen,
    interrupts: Interrupts,
    launcher: Launcher,
    *,
    position: int = 0,
    roster: Roster | None = None,
) -> Outcome:
    """Runs the services to their end. A lost log, or an impatient user, is an outcome, too; nobody is left behind."""
    history = History(log, place.folder)
    supervisor = Supervisor(
        place, log, launcher, config.supervisor, screen.take,
        say=screen.say, reader=history, position=position, roster=roster or Roster(),
    )  # fmt: skip

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
        return Outcome(LOG_LOST, str(error))


def finish_recording(place: RunPlace, patience_s: float) -> bool:
    """Records what the archiver could not, with clients of its own. False: the recording stays incomplete."""
    try:
        with (
            RedisLog.open(place.url, place.run, patience_s) as log,
            closing(RedisBlobs(place.url, place.run, patience_s)) as blobs,
        ):
            return complete_recording(log, blobs, place.folder)
    except (LogError, ServerError) as error:
        logger.warning("the recording stays as it is: folder=%s error=%s", place.folder, error)
        return False


def complete_recording(log: Rows, blobs: PayloadSource, folder: Path) -> bool:
    """Records what the archiver could not: the last words of others that came after its own, or all since it was killed.

    False: the recording stays incomplete.
    """
    try:
        with RunRecorder.open(folder, log.run, log.log_id, blobs) as recorder:
            while rows := log.read_rows(recorder.last_position, READ_LIMIT):
                recorder.append(rows)
    except (LogError, ServerError, ConfigError):
        logger.exception("the recording stays incomplete: folder=%s", folder)
        return False
    return True


def write_summary(folder: Path, summarise: Summarise, whole: bool = True) -> Mapping[str, object] | None:
    """Summarises the recording and writes summary.json; None when there is nothing to be read.

    The recording and not the log: what lands after it was closed is not in it, and its last link must be that of the summary. So there is
    no file for a recording that is not `whole`, which a later archiver may complete.
    """
    try:
        with Recording.open(folder) as recording:
            summary = summarise(recording.entries()) if recording.last_position() else None
    except (ConfigError, LogError, CodecError) as error:
        logger.warning("the recording cannot be summarised: folder=%s error=%s", folder, error)
        return None
    if not whole or summary is None:
        return summary
    partial_file = folder / f"{SUMMARY}.partial"
    try:
        partial_file.write_text(json.dumps(summary, indent=1) + "\n")
        partial_file.replace(folder / SUMMARY)
    except OSError:
        partial_file.unlink(missing_ok=True)
        logger.exception("the summary cannot be written: folder=%s", folder)
    return summary


def plan_only(config: RunConfig, run_id: str, url: str, screen: Screen) -> Path:
    """Makes folder, model and log of a run whose services are started one by one (`swingshift plan`); returns the folder."""
    refuse_known_run(url, run_id)
    plan, folder = plan_in_folder(config, run_id, screen, None)
    RedisLog.create(url, plan, time.time_ns()).close()
    write_info(folder, run_id, url, json.loads(plan.config))
    return folder
