"""A run's log from any position on, wherever its entries are by now: on the server, or only in the recording.

    read(after) ─▶ the stream ─ trimmed past me ─▶ the recording in `folder`, else the archiver's (bus/recall.py) ─▶ … ─▶ the stream again

Nothing is missed and nothing is taken twice: positions are dense, and each entry's chain is checked against the one before it, in the
recording, in the stream, and over the seam. Everybody who may come late reads like this; only the archiver does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bus import chain
from bus.entry import Entry
from bus.errors import GapError, LogChanged
from bus.patience import PATIENCE_S
from bus.recall import Recall, Recorded
from bus.recording import FILE_NAME, Recording, Row
from bus.redis_log import RedisLog

READ_LIMIT = 1_000
WINDOW = 10_000
"""Positions that are searched for a service's decisions at a time."""

Past = Callable[[int, int], Recorded]
"""Gives recorded rows after a position, at most so many; none where it has none. Raises GapError when it cannot be asked."""


class Stream(Protocol):
    """What is read of a `bus.log.Log`."""

    @property
    def run(self) -> str: ...
    @property
    def log_id(self) -> str: ...
    def read_rows(self, after: int, limit: int, block_ms: int = 0) -> list[Row]: ...
    def goes_on_from(self, position: int, chain: str) -> None: ...
    def last_position(self) -> int: ...


class History:
    """One reader's view of one run. Not thread-safe: one a thread. Close it if `open` made it."""

    def __init__(self, log: Stream, folder: Path | None, recall: Past | None = None) -> None:
        self._log = log
        self._folder = folder
        self._recall = recall
        self._past: Past | None = None
        """Where the entries came from last, while it had any that the stream has no more."""
        self._until = 0
        """Where the log ended when that began: from there on the stream is tried again, for a recording that grows never runs out."""
        self._last = (0, chain.GENESIS)
        """Position and chain of the entry that was read last."""
        self._closes: list[Callable[[], None]] = []

    @classmethod
    def open(cls, url: str, run: str, folder: Path | None, patience_s: float = PATIENCE_S) -> History:
        """Of a run on a server. `folder`: where its recording is, if it is on this machine; `patience_s`: how long to wait for an archiver.

        Raises LogMissing, ServerError.
        """
        log = RedisLog.open(url, run)
        recall = Recall(url, run, patience_s)
        history = cls(log, folder, recall.rows)
        history._closes = [log.close, recall.close]
        return history

    def __enter__(self) -> History:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections that `open` made."""
        for close in self._closes:
            close()

    @property
    def run(self) -> str:
        return self._log.run

    @property
    def log_id(self) -> str:
        return self._log.log_id

    def last_position(self) -> int:
        """Position of the newest entry."""
        return self._log.last_position()

    def read(self, after: int, limit: int, block_ms: int = 0) -> list[Entry]:
        """Entries with positions after+1, after+2, … (at most `limit`); with none there, waits up to `block_ms` (0: not at all).

        Raises GapError when some are neither on the server nor recorded, LogChanged when they do not follow on what was read, CodecError.
        """
        return [row.entry() for row in self.read_rows(after, limit, block_ms)]

    def read_rows(self, after: int, limit: int, block_ms: int = 0) -> list[Row]:
        """The same as they are stored: also of kinds and schemas that this version of swingshift does not know."""
        rows = self._read_past(after, limit)
        if not rows:
            self._past = None
            rows = self._read_stream(after, limit, block_ms)
        if rows:
            self._last = (rows[-1].position, rows[-1].chain)
        return rows

    def entries(self, after: int, last: int) -> Iterator[Entry]:
        """Entries from after+1 to `last`, as far as they are there now. Raises as `read` does."""
        while after < last:
            entries = self.read(after, min(READ_LIMIT, last - after))
            if not entries:
                return
            yield from entries
            after = entries[-1].position

    def decisions(self, source: str, after: int, last: int) -> Iterator[Entry]:
        """What `source` derived at positions after+1 to `last`. In a recording the rest is not even decoded. Raises as `read` does."""
        if self._folder is not None and (self._folder / FILE_NAME).is_file():
            with Recording.open(self._folder) as recording:
                recorded = min(last, recording.last_position()) if recording.log_id == self._log.log_id else 0
                while after < recorded:
                    end = min(after + WINDOW, recorded)
                    rows = list(recording.rows(after + 1, end, sources=[source]))
                    yield from (row.entry() for row in rows if row.derived)
                    after = end
        for entry in self.entries(after, last):
            if entry.derived and entry.source == source:
                yield entry

    def _read_past(self, after: int, limit: int) -> list[Row]:
        if self._past is None or after >= self._until:
            return []
        try:
            return self._recorded(self._past, after, limit)
        except GapError:
            return []  # an archiver has ended meanwhile: the stream says whether anything is missing

    def _read_stream(self, after: int, limit: int, block_ms: int) -> list[Row]:
        try:
            return self._log.read_rows(after, limit, block_ms)
        except GapError as gap:
            tried = [str(gap)]
            for past in self._pasts():
                try:
                    rows = self._recorded(past, after, limit)
                except GapError as error:
                    tried.append(str(error))
                    continue
                if rows:
                    self._past, self._until = past, self._log.last_position()
                    return rows
            where = f"{self._folder} has no recording of them" if self._folder is not None else "no recording was named"
            raise GapError("; ".join([*tried, where])) from gap

    def _pasts(self) -> Iterator[Past]:
        if self._folder is not None and (self._folder / FILE_NAME).is_file():
            yield self._read_recording
        if self._recall is not None:
            yield self._recall

    def _read_recording(self, after: int, limit: int) -> Recorded:
        assert self._folder is not None
        with self._open_recording(self._folder) as recording:
            return Recorded(recording.log_id, list(recording.rows(after + 1, after + limit)))

    def _open_recording(self, folder: Path) -> Recording:
        recording = Recording.open(folder)
        try:
            self._check_log(recording.log_id, f"the recording in {folder}")
        except LogChanged:
            recording.close()
            raise
        return recording

    def _check_log(self, log_id: str, what: str) -> None:
        if log_id != self._log.log_id:
            raise LogChanged(
                f"run {self.run}: {what} is of log {log_id}, the server has log {self._log.log_id}: the run was begun anew; "
                "name the folder that records this log, or move that recording away"
            )

    def _recorded(self, past: Past, after: int, limit: int) -> list[Row]:
        """Rows after `after` from a recording, each checked against the one before it."""
        known = chain.GENESIS if after == 0 else self._last[1] if after == self._last[0] else None
        log_id, rows = past(after, limit) if known is not None else past(after - 1, limit + 1)
        if not rows:
            return []
        self._check_log(log_id, "what the archiver records")
        previous = rows[0].chain if known is None else known
        rows = rows[1:] if known is None else rows
        for position, row in enumerate(rows, after + 1):
            if row.position != position:
                raise GapError(f"the recording of run {self.run} has no entry {position}, the next one that it has is {row.position}")
            if row.link(previous) != row.chain:
                raise LogChanged(
                    f"run {self.run}: recorded entry {position} has chain {row.chain}, after entry {position - 1} as this reader knows it "
                    f"that should be {row.link(previous)}: the recording is of another history, or was changed"
                )
            previous = row.chain
        if rows:
            self._log.goes_on_from(rows[-1].position, rows[-1].chain)
        return rows
