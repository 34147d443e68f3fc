"""The archiver's process: says that it is there, records, and records its own last word."""

from __future__ import annotations

import logging
import time
from contextlib import closing

from bus.entry import Draft, Producer
from bus.events import ServiceStarted, ServiceStopped
from bus.memory_use import MemoryUse
from bus.recorder import Recorder
from bus.recording import Recording
from bus.trimming import Trimming
from services.archiver.archiver import Archiver
from services.archiver.attendance import KINDS, Attendance
from services.archiver.brake import KINDS as WEIGHED
from services.archiver.janitor import Janitor
from services.context import ServiceContext
from services.shell import Terminated

logger = logging.getLogger(__name__)

SOURCE = "archiver"
GRACE_SHARE = 0.5
"""Of the supervisor's patience after the end of the run: the archiver must be done before that is over."""


def main(context: ServiceContext) -> None:
    """Records the run's log into its folder, until the run is over. Raises Fenced when a newer incarnation has taken over."""
    with context.open_log() as log:
        me = log.attach(SOURCE, _fact(context.started())).producer
    with context.alive(me.epoch):
        try:
            _record(context, me)
            reason = "the run has ended"
        except Terminated:
            reason = "terminated"
        # With clients of their own: a signal may have interrupted the others in the middle of an answer.
        with context.open_log() as log:
            last = log.append(me, [_fact(ServiceStopped(reason=reason))])
        _record(context, me, last)


def _fact(event: ServiceStarted | ServiceStopped) -> Draft:
    return Draft(event, derived=False, cause=0, at=time.time_ns())


def _record(context: ServiceContext, me: Producer, last: int | None = None) -> None:
    """Records up to entry `last`; None: until the run is over."""
    grace_s = context.config.supervisor.grace_s * GRACE_SHARE
    with (
        context.open_log() as log,
        Recorder.open(context.folder, context.run, log.log_id) as recorder,
        closing(Trimming(context.url, context.run, log.log_id)) as trimming,
        closing(MemoryUse(context.url, context.run)) as memory,
    ):
        logger.info("recording goes on: folder=%s log=%s position=%d", context.folder, log.log_id, recorder.last_position)
        janitor = Janitor(log, memory.measure, context.config.redis)
        with Recording.open(context.folder) as recording:
            janitor.take(row.entry() for row in recording.rows(kinds=WEIGHED))
        archiver = Archiver(
            log, recorder, me, lambda position: trimming.report(SOURCE, position), _attendance(context), grace_s, janitor.take
        )
        if last is None:
            archiver.run()
        else:
            archiver.run_to(last)
        logger.info("recorded: position=%d chain=%s", recorder.last_position, recorder.last_chain)


def _attendance(context: ServiceContext) -> Attendance:
    """As it was at the newest recorded entry."""
    attendance = Attendance()
    with Recording.open(context.folder) as recording:
        for row in recording.rows(kinds=KINDS):
            attendance.apply(row.entry())
    return attendance
