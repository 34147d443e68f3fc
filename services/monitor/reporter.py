"""Tells the measures of each step: as `Measured` events in the log, and to trackers. It looks at the same fold as the live view.

    attach (fences the monitor before) ─▶ entries up to there: steps of the past ─▶ those that are not in the log ─▶ then each as it ends

A measure is worth no run: when one cannot be told, the reporter says why in its own log and tells no more. Two monitors that watch a run do
not tell twice: the later one takes over if the first shows no sign of life, else it only watches, as does one that comes after the end.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from bus.alive import Alive, living_epochs
from bus.connection import Connection
from bus.entry import Draft, Entry, Producer
from bus.errors import GapError, LogUnavailable, ServerError, SwingshiftError
from bus.events import EvalDone, Event, Measured, RunEnded, ServiceStarted, ServiceStopped, StepDone
from bus.log import Log
from bus.redis_log import RedisLog
from services.config import MonitorConfig
from services.monitor.measures import StepMeasures
from services.monitor.summary import Summary
from services.monitor.trackers import Trackers

logger = logging.getLogger(__name__)

SOURCE = "monitor"
END_WINDOW = 512
"""Newest entries among which RunEnded is looked for."""


class Reporter:
    """Feed it every entry from the first one on, each after `summary` took it in. `log`, `trackers`: None where nothing is to be told."""

    def __init__(self, log: Log | None, trackers: Trackers | None, clock: Callable[[], int] = time.time_ns) -> None:
        self._log = log
        self._trackers = trackers
        self._clock = clock
        self._measures = StepMeasures()
        self._untold: dict[int, tuple[Measured, int]] = {}
        """Step -> (its measures, position of its end), while they may be in the log already."""
        self._producer: Producer | None = None
        self._caught_up_at = 0
        if log is not None:
            attached = log.attach(SOURCE, self._fact(ServiceStarted(code="", host=socket.gethostname(), pid=os.getpid()), 0))
            self._producer, self._caught_up_at = attached.producer, attached.position

    @property
    def epoch(self) -> int | None:
        """Of this monitor; None: it appends nothing."""
        return None if self._producer is None else self._producer.epoch

    def take(self, entry: Entry, summary: Summary) -> None:
        """Takes in one entry; never raises for what it could not tell."""
        measured = self._measures.take(entry, summary)
        if measured is not None and isinstance(entry.event, StepDone):
            values = {**entry.event.metrics, **{f"timing_s/{name}": seconds for name, seconds in entry.event.seconds.items()}}
            self._track(lambda to: to.log(measured.step, entry.at / 1e9, {**values, **measured.values}))
            self._untold[measured.step] = (measured, entry.position)
        if isinstance(entry.event, EvalDone) and entry.event.metrics:
            done = entry.event
            self._track(lambda to: to.log_evaluation(done.version, summary.books.steps_done, entry.at / 1e9, done.metrics))
        if isinstance(entry.event, Measured):
            self._untold.pop(entry.event.step, None)
        if self._producer is not None and entry.position >= self._caught_up_at:
            self._tell()
            if isinstance(entry.event, RunEnded):
                self._stop("the run has ended", entry.position)
        elif self._producer is None:
            self._untold.clear()

    def close(self, *, last_word: bool = True) -> None:
        """Says the last word, if it was not said and the log is there to take it."""
        if last_word:
            self._stop("closed", 0)
        if self._trackers is not None:
            self._give_up_on_failure("trackers cannot be closed", self._trackers.close)

    def _tell(self) -> None:
        facts = [self._fact(measured, cause) for measured, cause in self._untold.values()]
        self._untold.clear()
        if facts:
            self._append(facts)

    def _stop(self, reason: str, cause: int) -> None:
        if self._producer is not None:
            self._append([self._fact(ServiceStopped(reason=reason), cause)])
            self._producer = None

    def _append(self, facts: list[Draft]) -> None:
        log, producer = self._log, self._producer
        assert log is not None
        assert producer is not None
        if not self._give_up_on_failure("measures are not appended any more", lambda: log.append(producer, facts)):
            self._producer = None

    def _track(self, tell: Callable[[Trackers], None]) -> None:
        trackers = self._trackers
        if trackers is not None and not self._give_up_on_failure("nothing is tracked any more", lambda: tell(trackers)):
            self._trackers = None

    def _give_up_on_failure(self, what: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except Exception:  # whatever a tracker raises: the run goes on
            logger.exception("%s: it failed", what)
            return False
        return True

    def _fact(self, event: Event, cause: int) -> Draft:
        return Draft(event, derived=False, cause=cause, at=self._clock())


class Reporting:
    """A reporter with its connections and its sign of life, for one run on a server. Use `take`, then `close`."""

    def __init__(self, url: str, run: str, folder: Path, config: MonitorConfig) -> None:
        self._log = RedisLog.open(url, run)
        self._alive: Alive | None = None
        only_watches = monitor_lives(url, run) or has_ended(self._log)
        if only_watches:
            logger.info("the run has ended, or another monitor tells its measures; this one only watches: run=%s", run)
        trackers = None if only_watches else _trackers(config, run, folder)
        self._reporter = _reporter(None if only_watches or not config.events else self._log, trackers)
        if self._reporter.epoch is not None:
            self._alive = Alive(url, run, SOURCE, self._reporter.epoch, watched="controller")
            self._alive.__enter__()

    def take(self, entry: Entry, summary: Summary) -> None:
        """Takes in one entry, after `summary` did."""
        self._reporter.take(entry, summary)

    def close(self, *, last_word: bool = True) -> None:
        """Says the last word, if the log is there to take it, and closes everything."""
        self._reporter.close(last_word=last_word)
        if self._alive is not None:
            self._alive.__exit__(None, None, None)
        self._log.close()


def has_ended(log: Log) -> bool:
    """The run is over: what it was is on the disk already, and nobody adds to it."""
    try:
        newest = log.read(max(0, log.last_position() - END_WINDOW), END_WINDOW)
    except GapError:  # a log that was lost and goes on has no older entries, and had not ended
        return False
    return any(isinstance(entry.event, RunEnded) for entry in newest)


def monitor_lives(url: str, run: str) -> bool:
    """Another monitor of this run shows a sign of life."""
    connection = Connection(url)
    try:
        return bool(living_epochs(connection, run, [SOURCE]))
    except (LogUnavailable, ServerError):  # away, or this user may not look
        return False
    finally:
        connection.close()


def _trackers(config: MonitorConfig, run: str, folder: Path) -> Trackers | None:
    try:
        return Trackers(config, run, folder)
    except Exception:  # whatever a tracker raises: the run goes on
        logger.exception("nothing is tracked: trackers=%s", ",".join(config.trackers))
        return None


def _reporter(log: RedisLog | None, trackers: Trackers | None) -> Reporter:
    """One that appends; where this user may not (an ACL), one that does not."""
    try:
        return Reporter(log, trackers)
    except SwingshiftError as error:
        logger.warning("measures are not appended: error=%s", error)
        return Reporter(None, trackers)
