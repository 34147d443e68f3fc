"""Which history a run goes on with, when its recording and what the server has of its log are not the same.

    recording  ────────────●────────        ● newest entry that both have, by its chain
    server                 └──────

    the server's is as long or longer, and follows on the recorded one     go on in that log
    shorter, empty, gone                                                   a log made anew from the recording
    forked                                                                 the longer of the two: a log made anew from it

What is not gone on with is kept: the server's under `log:ITS-IDENTITY`, the recording's in a file beside it.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bus.connection import Connection
from bus.errors import ConfigError, LogChanged
from bus.keys import Keys
from bus.recorder import Recorder
from bus.recording import FILE_NAME, Recording, Row
from bus.recording_cut import cut_recording
from bus.redis_blobs import RedisBlobs
from bus.restoring import newest_rows, restore
from bus.run_recorder import RunRecorder
from bus.server_checks import connect
from bus.stream import chain_of, position_of, row_of
from bus.wire import Reply
from services.launcher.protocol import Say

logger = logging.getLogger(__name__)

READ_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class ServerLog:
    """What a server has of a run's log."""

    connection: Connection
    keys: Keys
    log_id: str
    first: int
    last: int
    whole: bool
    """The stream ends where the log's own notes say; else somebody wrote by hand, or a backup was restored in part."""

    @classmethod
    def find(cls, connection: Connection, run: str) -> ServerLog | None:
        """None: it has nothing of the run."""
        keys = Keys(run)
        log_id, end, digest = cast("list[bytes | None]", connection.call("HMGET", keys.meta, "log", "position", "chain"))
        oldest = cast("list[Reply]", connection.call("XRANGE", keys.log, "-", "+", "COUNT", 1))
        newest = cast("list[Reply]", connection.call("XREVRANGE", keys.log, "+", "-", "COUNT", 1))
        if log_id is None or not oldest or not newest:
            return None
        last = position_of(newest[0])
        whole = (end, digest) == (b"%d" % last, chain_of(newest[0]).encode())
        return cls(connection, keys, log_id.decode(), position_of(oldest[0]), last, whole)

    def chain(self, position: int) -> str:
        """Chain of the entry at `position`, "" when it is not there."""
        items = cast("list[Reply]", self.connection.call("XRANGE", self.keys.log, f"{position}-0", f"{position}-0"))
        return chain_of(items[0]) if items else ""

    def follows_on(self, chain: str) -> bool:
        """The oldest entry that is there comes after one with this chain."""
        items = cast("list[Reply]", self.connection.call("XRANGE", self.keys.log, "-", "+", "COUNT", 1))
        try:
            row_of(self.keys.run, items[0], chain)
        except LogChanged:
            return False
        return True

    def rows(self, after: int) -> list[Row]:
        """Some of the entries behind `after`, as they are stored."""
        items = self.connection.call("XRANGE", self.keys.log, f"({after}-0", "+", "COUNT", READ_LIMIT)
        return [row_of(self.keys.run, item) for item in cast("list[Reply]", items)]


def reconcile(folder: Path, run: str, url: str, say: Say) -> None:
    """Leaves a server and a recording that agree, with nothing recorded that the log is not known to have had.

    Raises ConfigError when neither knows the run, LogError, ServerError.
    """
    with closing(connect(url)) as connection:
        found = ServerLog.find(connection, run)
        if not (folder / FILE_NAME).is_file():
            _refuse_without_recording(folder, run, found, connection)
            return
        with Recording.open(folder) as recording:
            common = common_position(recording, found)
            recorded = recording.last_position()
            same_log = found is not None and found.log_id == recording.log_id
        if found is not None and found.whole and found.first <= recorded + 1 and common == recorded <= found.last:
            if not same_log:
                _adopt(folder, run, found.log_id)
            return
        if found is None:
            say(f"the server has nothing of run {run}: its log is made anew from the recording, which ends at entry {recorded}")
        elif found.last > recorded and 0 < common >= found.first - 1:
            say(_why_taken_over(found, common, recorded))
            _take_over(folder, run, found, common, RedisBlobs(url, run))
            common = found.last
        else:
            say(_why_replaced(found, common, recorded))
        log_id = _restore(folder, run, connection, found, common)
        _adopt(folder, run, log_id)


def common_position(recording: Recording, found: ServerLog | None) -> int:
    """The newest position up to which both have the same entries; 0 when none is known to be."""
    recorded = recording.last_position()
    if found is None or recorded == 0:
        return 0
    if found.first == recorded + 1:
        # All that is recorded was trimmed: the next entry tells what it follows on.
        return recorded if found.follows_on(recording.meta().last_chain) else 0
    low, high = found.first - 1, min(recorded, found.last)
    if high <= low or not _same(recording, found, found.first):
        return 0
    while low < high:  # the chain is the same at `low` (or that is before the first) and everywhere below
        middle = (low + high + 1) // 2
        if _same(recording, found, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _same(recording: Recording, found: ServerLog, position: int) -> bool:
    row = next(recording.rows(position, position), None)
    return row is not None and row.chain == found.chain(position)


def _why_taken_over(found: ServerLog, common: int, recorded: int) -> str:
    if common == recorded:
        return f"the server's log is damaged behind entry {recorded}, where the recording ends: what can be read of it is gone on with"
    return (
        f"recording and server went different ways behind entry {common}: the recording has {recorded - common} more, "
        f"the server {found.last - common}, which are gone on with"
    )


def _why_replaced(found: ServerLog, common: int, recorded: int) -> str:
    known = f"it has the recorded history up to entry {common}" if common else "it has none of the recorded history"
    more = found.last - max(common, found.first - 1)
    rest = f", and {more} entries of another one, kept as {found.keys.former_log(found.log_id)}" if more else ""
    return (
        f"the server's log ends at entry {found.last}, the recording at {recorded}: {known}{rest}. The log is made anew from the recording"
    )


def _refuse_without_recording(folder: Path, run: str, found: ServerLog | None, connection: Connection) -> None:
    if found is None:
        raise ConfigError(f"neither {folder} nor {connection.where} has anything of run {run}: there is nothing to go on with")
    if found.first > 1:
        raise ConfigError(
            f"{folder} has no {FILE_NAME}, and {connection.where} has the log of run {run} only from entry {found.first} on: "
            "put the recording back, it has what was before"
        )


def _take_over(folder: Path, run: str, found: ServerLog, common: int, blobs: RedisBlobs) -> None:
    """Records the server's entries behind `common` in place of those that are recorded there."""
    with Recording.open(folder) as recording:
        log_id, recorded = recording.log_id, recording.last_position()
    if common < recorded:
        logger.warning("the recording was cut: position=%d whole=%s", common, cut_recording(folder, common))
    with closing(blobs), RunRecorder.open(folder, run, log_id, blobs) as recorder:
        while recorder.last_position < found.last:
            recorder.append(found.rows(recorder.last_position))


def _restore(folder: Path, run: str, connection: Connection, found: ServerLog | None, common: int) -> str:
    with Recording.open(folder) as recording:
        newest = newest_rows(recording)
        if not newest:
            raise ConfigError(f"{folder / FILE_NAME} has no entry: there is nothing to go on with")
        return restore(connection, run, newest, recording.epochs(), None if found is None else found.log_id, common + 1)


def _adopt(folder: Path, run: str, log_id: str) -> None:
    with Recording.open(folder) as recording:
        known = recording.log_id
    with Recorder.open(folder, run, known) as recorder:
        recorder.adopt(log_id)
