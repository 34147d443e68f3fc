"""`swingshift run --resume`: a run that did not end goes on, after its supervisor was killed, or elsewhere from its folder alone.

folder ▸ lock ▸ server ▸ one history (reconcile) ▸ recording completed ▸ payloads, weights put back ▸ ServiceLost of all who were there
       ▸ services start, as after any crash
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bus.alive import TTL_S
from bus.connection import Connection
from bus.embedded import folder_url
from bus.entry import Draft
from bus.errors import ConfigError, LogUnavailable, ServerAbsent
from bus.events import Event, RedoDiverged, ServiceLost, ServiceStarted, ServiceStopped, SettingChanged, WeightsPublished
from bus.keys import Keys, check_run_id
from bus.patience import PATIENCE_S
from bus.recording import FILE_NAME, Recording
from bus.redis_log import RedisLog
from bus.runs import living_services
from bus.server import named_server, server
from bus.server_checks import connect
from services.config import RunConfig
from services.config_file import overridden
from services.entry import code_of
from services.launcher.fitting import copies_instead
from services.launcher.folders import SERVER, SUMMARY, named_by, write_info
from services.launcher.interrupts import Interrupts
from services.launcher.lock import RunLock
from services.launcher.past import Past
from services.launcher.protocol import Launcher, RunPlace, Site
from services.launcher.put_back import put_payloads_back
from services.launcher.reconcile import reconcile
from services.launcher.run import RunResult, Screen, Summarise, drive, finish_recording, refuse_known_run
from services.launcher.supervisor import SUPERVISOR, services_of
from services.launcher.valid import offered_steps, refuse_without_checkpoint
from services.launcher.weights_back import Differing, missing_weights, put_weights_back
from services.local_settings import INFO, check_local, local_settings, merged
from services.monitor.reporter import SOURCE as MONITOR
from services.planned import config_of
from services.policy.core import source_of
from services.setting_changes import OPERATOR, raised_for_cluster, said_anew

logger = logging.getLogger(__name__)

EMBEDDED = "embedded"
"""In place of a server's URL: one of our own in the run's folder, also for a run that was on another before."""
LEAVING_S = 10.0
"""Longest wait for the embedded server of a supervisor that was killed to be gone."""
POLL_S = 0.2
SILENT_S = TTL_S / 2
"""A sign of life that has less than this left was not renewed in time: nobody renews it any more."""


@dataclass(frozen=True, slots=True)
class Resuming:
    """What a user asks for, besides which run."""

    redis: str | None
    settings: Sequence[str]
    site: Site
    screen: Screen
    summarise: Summarise
    is_new: bool = False
    """The folder was just made, by going back: no server has the run."""


def find_folder(named: str, runs: Path) -> Path:
    """The folder of a run that the user named by its id or its folder. Raises ConfigError."""
    for folder in (Path(named), runs / named):
        if (folder / INFO).is_file() or (folder / FILE_NAME).is_file():
            return folder.absolute()
    raise ConfigError(
        f"there is no run {named!r} in {runs}, and {named} is no folder of one: name its folder, or where runs are with --runs"
    )


def resume(folder: Path, asked: Resuming) -> RunResult:
    """Goes on with the run in `folder`. Raises ConfigError, LogError, ServerError before anything was started."""
    check_local(asked.settings)
    with Interrupts() as interrupts, asked.site, RunLock(folder):
        run = _run_of(folder)
        named = None if asked.redis == EMBEDDED else named_server(asked.redis, os.environ, named_by(folder))
        _wait_for_leaving_server(folder)
        with server(named, folder / SERVER, asked.screen.say) as url:
            place = RunPlace(url, run, folder)
            try:
                past, config = _prepare(place, named, asked)
            except ServerAbsent as error:
                raise ServerAbsent(f"{error}; or go on with one in the run's folder: --redis {EMBEDDED}") from error
            except BaseException:
                asked.screen.end()
                raise
            with launching(place, past, config, asked) as launcher, RedisLog.open(url, run) as log:
                return drive(
                    log, place, past.plan, config, asked.screen, interrupts, asked.summarise, asked.site, launcher,
                    position=past.position, roster=past.roster,
                )  # fmt: skip


@contextmanager
def launching(place: RunPlace, past: Past, config: RunConfig, asked: Resuming) -> Iterator[Launcher]:
    """The launcher of the run's services. Raises ConfigError when there is no place for them."""
    with ExitStack() as stack:
        try:
            launcher = stack.enter_context(asked.site.launching(place, past.plan, config, asked.screen.say))
        except BaseException:
            asked.screen.end()
            raise
        yield launcher


def _prepare(place: RunPlace, named: str | None, asked: Resuming) -> tuple[Past, RunConfig]:
    """One history, and all that its services need to go on. Raises ConfigError, LogError, ServerError."""
    if asked.is_new:
        refuse_known_run(named, place.run)
    elif named is not None:
        _wait_for_silence(place.url, place.run, asked.screen)
    alive = _bury(place.url, place.run, everybody=named is None)
    reconcile(place.folder, place.run, place.url, asked.screen.say)
    finish_recording(place, PATIENCE_S)
    past = Past.read(place.folder, partial(asked.screen.working, "reading what the run had"))
    _refuse_ended(past, place.folder)
    refuse_without_checkpoint(past, place.folder)
    config = _settle(place, past, named, asked)
    with RedisLog.open(place.url, place.run) as log:
        _put_back(log, place, past, config, asked.screen, elsewhere=asked.site.multi_machine)
        say_lost(log, past, alive, tells_measures=config.monitor.events)
        say_settings(log, [*said_anew(past.settings, config, asked.settings), *_for_site(past, asked)])
    return past, config


def _for_site(past: Past, asked: Resuming) -> list[SettingChanged]:
    """What another place than it was planned for asks of the run; told to the user."""
    changes = raised_for_cluster(past.settings) if asked.site.multi_machine else []
    for change in changes:
        asked.screen.say(f"{change.name} is {change.value} s on a cluster, unless `swingshift set {past.plan.run}` says another")
    return changes


def say_settings(log: RedisLog, changes: Sequence[SettingChanged]) -> None:
    """What is set where the run goes on, and was set otherwise before."""
    if changes:
        log.append(OPERATOR, [Draft(event, derived=False, cause=0, at=time.time_ns()) for event in changes])


def say_lost(log: RedisLog, past: Past, alive: Sequence[str], *, tells_measures: bool) -> None:
    """Everybody who was there, but for who is `alive`, is gone: what they had begun is begun again by who comes after them."""
    known = {spec.source for spec in services_of(past.plan)} | ({MONITOR} if tells_measures else set())
    known |= {source_of(label, "shadow") for label in past.roster.shadows}
    lost = [
        ServiceLost(service=source, epoch=epoch, restarting=source in known, detail="the run was resumed")
        for source, epoch in past.attendance.here.items()
        if source not in alive
    ]
    if lost:
        log.append(SUPERVISOR, [Draft(event, derived=False, cause=0, at=time.time_ns()) for event in lost])


def _run_of(folder: Path) -> str:
    """The run's id: of its recording, else as it is noted down."""
    if (folder / FILE_NAME).is_file():
        with Recording.open(folder) as recording:
            return check_run_id(recording.run)
    return check_run_id(str(json.loads((folder / INFO).read_text())["run"]))


def _wait_for_leaving_server(folder: Path) -> None:
    """The embedded server of a killed supervisor ends by itself; it may need a moment to close its files."""
    url = folder_url(folder / SERVER)
    give_up = time.monotonic() + LEAVING_S
    while url is not None and time.monotonic() < give_up:
        connection = Connection(url)
        try:
            connection.open()
        except LogUnavailable:
            return
        finally:
            connection.close()
        time.sleep(POLL_S)


def _wait_for_silence(url: str, run: str, screen: Screen) -> None:
    """Until nobody of the run renews a sign of life. Raises ConfigError when a service does: somebody else runs it."""
    with closing(connect(url)) as connection:
        before: dict[str, int] = {}
        while signs := _signs(connection, run):
            renewed = [service for service, left_ms in signs.items() if left_ms > before.get(service, left_ms)]
            if renewed and renewed != [MONITOR]:
                raise ConfigError(
                    f"run {run} is active on {connection.where}: {', '.join(renewed)} shows signs of life; "
                    "wait until it has ended, or stop it with `swingshift stop`"
                )
            if renewed or all(left_ms < SILENT_S * 1000 for left_ms in signs.values()):
                return
            if not before:
                screen.say(f"waiting until it is certain that nobody runs {run} any more, for {TTL_S:g} s at most")
            before = signs
            time.sleep(POLL_S)


def _bury(url: str, run: str, *, everybody: bool) -> list[str]:
    """Takes away the signs of life of the dead, which would keep a new monitor from telling measures; returns who still has one.

    `everybody`: on a server of our own that was just started nobody can be alive.
    """
    with closing(connect(url)) as connection:
        signs = _signs(connection, run)
        dead = [service for service, left_ms in signs.items() if everybody or left_ms < SILENT_S * 1000]
        for service in dead:
            connection.call("DEL", Keys(run).alive(service))
    return [service for service in signs if service not in dead]


def _signs(connection: Connection, run: str) -> dict[str, int]:
    """Service -> milliseconds that its sign of life lasts."""
    found = {service: connection.call("PTTL", Keys(run).alive(service)) for service in living_services(connection, run)}
    return {service: left for service, left in found.items() if isinstance(left, int) and left > 0}


def _refuse_ended(past: Past, folder: Path) -> None:
    """Raises ConfigError for a run that is over, with what can be done instead."""
    if past.ended is None:
        return
    ended, steps = past.ended[1], offered_steps(past, folder)
    how = f"{ended.reason}{f': {ended.detail}' if ended.detail else ''}"
    instead = (
        f"go back into a new run with --from-step N; steps with a checkpoint: {', '.join(map(str, steps))}"
        if steps
        else "it has no checkpoint to go back to"
    )
    raise ConfigError(f"run {past.plan.run} has ended ({how}), there is nothing to go on with; {instead}")


def _settle(place: RunPlace, past: Past, named: str | None, asked: Resuming) -> RunConfig:
    """Notes down where the run is now; returns its configuration here. Raises ConfigError."""
    folder, planned = place.folder, config_of(past.plan)
    settings = merged(local_settings(folder), asked.settings)
    say = asked.screen.say
    settings = merged(settings, copies_instead(overridden(planned, settings, "--set"), folder, say))
    config = overridden(planned, settings, "--set")
    asked.site.check(past.plan, config, say, goes_on=True)
    write_info(folder, place.run, named, planned.resolved(), settings)
    (folder / SUMMARY).unlink(missing_ok=True)
    return config


def _put_back(log: RedisLog, place: RunPlace, past: Past, config: RunConfig, screen: Screen, *, elsewhere: bool) -> None:
    """Payloads and weights that the run's services need and that are not where they look for them. Raises ConfigError, LogError.

    `elsewhere`: the trainer may be on another machine; what was in the memory of one it makes again itself.
    """
    payloads = put_payloads_back(place.folder, place.url, place.run, past.lives.live(), partial(screen.working, "putting payloads back"))
    if payloads:
        screen.say(f"{payloads} payloads were put back from the recording")
    folder = config.weights.folder or place.folder / "weights"
    needed = past.needed_versions()
    missing = missing_weights(needed, folder, only_there=past.plan.parent is not None, but_of_machines=elsewhere)
    if not missing:
        return
    names = ", ".join(map(str, missing))
    screen.say(f"the published weights of version {names} are gone: they are taken from a checkpoint, or trained again")
    progress = partial(screen.working, "training again")
    differing = put_weights_back(place.folder, folder, config.model.path, missing, progress)
    if differing:
        _publish_anew(log, past, {publication.version: publication for publication in needed}, differing)


def _publish_anew(log: RedisLog, past: Past, published: dict[int, WeightsPublished], differing: Sequence[Differing]) -> None:
    """What was trained again came out other, and what was published is lost. Raises ConfigError when the run is not to go on so."""
    plan = past.settings.plan or past.plan
    if plan.on_redo_diverged == "stop":
        names = ", ".join(f"{other.version} (digest {other.digest}, published {published[other.version].digest})" for other in differing)
        raise ConfigError(
            f"the published weights of version {names} are gone, and training again gives others: this machine or build computes "
            "otherwise. Go back to a step that has a checkpoint with --from-step, or plan runs with on_redo_diverged: republish"
        )
    facts: list[Event] = []
    for other in differing:
        before = published[other.version]
        facts.append(
            RedoDiverged(version=other.version, recorded_digest=before.digest, redone_digest=other.digest, action=plan.on_redo_diverged)
        )
        anew = {"revision": before.revision + 1, "transport": "file", "uri": other.uri, "digest": other.digest, "machine": ""}
        facts.append(before.model_copy(update={**anew, "num_bytes": other.num_bytes, "seconds": 0.0, "delta": None, "direct": None}))
    # The trainer's facts, said for it: an incarnation of its own, which the trainer that is started then replaces.
    started = ServiceStarted(code=code_of("trainer", plan.policy), host=socket.gethostname(), pid=os.getpid())
    me = log.attach("trainer", Draft(started, derived=False, cause=0, at=time.time_ns()))
    drafts = [
        Draft(event, derived=False, cause=me.position, at=time.time_ns()) for event in (*facts, ServiceStopped(reason="weights put back"))
    ]
    log.append(me.producer, drafts)
