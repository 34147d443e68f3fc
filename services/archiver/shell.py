"""The archiver's process: says that it is there, records, and records its own last word."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import closing

from bus.entry import Draft, Producer
from bus.events import ServiceStarted, ServiceStopped
from bus.memory_use import MemoryUse
from bus.recall import Recalling
from bus.recording import Recording, Row
from bus.redis_snapshots import RedisSnapshots
from bus.run_recorder import RunRecorder
from bus.trimming import Trimming
from services.archiver.archiver import Archiver
from services.archiver.attendance import KINDS, Attendance
from services.archiver.disk_patience import DiskPatience
from services.archiver.janitor import Janitor
from services.archiver.origin import CODE, OriginThread
from services.archiver.policy_sources import PolicySources
from services.archiver.snapshot_copies import SnapshotCopies
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
            origin = OriginThread(context.plan, context.folder, context.config.supervisor.grace_s * GRACE_SHARE)
            with origin, Recalling(context.url, context.run, context.folder):
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
    """Records up to entry `last`; None: until the run is over, waiting for a disk that takes nothing."""
    grace_s = context.config.supervisor.grace_s * GRACE_SHARE
    with (
        context.open_log() as log,
        closing(context.open_blobs()) as blobs,
        closing(Trimming(context.url, context.run, log.log_id)) as trimming,
        closing(MemoryUse(context.url, context.run)) as memory,
        SnapshotCopies(RedisSnapshots(context.url, context.run), context.folder) as snapshots,
    ):
        janitor = Janitor(log, trimming, blobs, memory.measure, context.config.redis)
        policies = PolicySources(context.folder / CODE)

        def open_recorder() -> RunRecorder:
            return RunRecorder.open(context.folder, context.run, log.log_id, blobs)

        patience = DiskPatience(janitor.hindered)
        with patience.until_taken(open_recorder) if last is None else open_recorder() as recorder:
            logger.info("recording goes on: folder=%s log=%s position=%d", context.folder, log.log_id, recorder.last_position)
            with Recording.open(context.folder) as recording:
                janitor.recover(recording)
                policies.recover(recording)

            def report(position: int) -> None:
                trimming.report(SOURCE, position)

            def watch(rows: Sequence[Row]) -> None:
                janitor.take(rows)
                snapshots.take(rows)
                policies.take(rows)

            archiver = Archiver(log, recorder, me, _attendance(context), grace_s, report, watch, janitor.hindered)
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
