"""Recorded entries and payloads for a reader that has no recording: it asks the archiver, over the server.

    reader ─▶ RPUSH recall [who, number, after, limit] ─▶ archiver (a thread of its own) ─▶ SET recall:WHO [number, log, rows] ─▶ reader
                           [who, number, names]                                                             [number, "", payloads]

Both keys pass by themselves when nobody needs them. The reader asks again until it is answered: an archiver that was killed in the middle
has a successor. Rows travel as they are stored, so their reader checks the chain as if it had the file.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, cast

import msgpack

from bus.connection import Connection
from bus.errors import BlobMissing, CodecError, GapError, LogUnavailable, SwingshiftError
from bus.keys import Keys
from bus.patience import PATIENCE_S, persist
from bus.payload_recording import PayloadRecording
from bus.recording import Recording, Row, checked_row
from bus.wire import Reply

logger = logging.getLogger(__name__)

MOST_ROWS = 1_000
MOST_BYTES = 1 << 20
"""Bodies in one answer; one row is sent, however large."""
WAIT_S = 1
"""How long the archiver waits for a question before it looks whether it ends."""
ASK_AGAIN_S = 3.0
POLL_S = 0.01
KEPT_MS = 60_000
"""How long a question or an answer is there for who should take it."""


class Recorded(NamedTuple):
    """Rows of a recording, in order, and the log that it records."""

    log_id: str
    rows: list[Row]


class Recall:
    """Asks the archiver of one run. Not thread-safe: one client a thread."""

    def __init__(self, url: str, run: str, patience_s: float = PATIENCE_S) -> None:
        self._keys = Keys(run)
        self._connection = Connection(url)
        self._patience_s = patience_s
        self._client = uuid.uuid4().hex
        self._number = 0

    def close(self) -> None:
        self._connection.close()

    def rows(self, after: int, limit: int) -> Recorded:
        """Recorded rows after a position, some of the first `limit`; none when there are none.

        Raises GapError when no archiver answers, or one that cannot read its recording.
        """
        log_id, rows = self._ask(after, limit)
        return Recorded(log_id, [checked_row(tuple(row)) for row in cast("list[list[object]]", rows)])

    def payloads(self, names: Sequence[str]) -> dict[str, bytes]:
        """Those of `names` that are recorded. Raises as `rows` does."""
        found: dict[str, bytes] = {}
        waiting = list(names)
        while waiting:
            _, answered = self._ask(waiting[:MOST_ROWS])
            found |= {name: data for name, data in cast("list[tuple[str, bytes | None]]", answered) if data is not None}
            waiting = waiting[max(1, len(answered)) :]
        return found

    def _ask(self, *what: int | list[str]) -> tuple[str, list[object]]:
        """The log that the archiver records, and what it answers."""
        self._number += 1
        question = msgpack.packb([self._client, self._number, *what])
        began, asked = time.monotonic(), 0.0
        while True:
            now = time.monotonic()
            if not asked or now - asked >= ASK_AGAIN_S:
                self._call("RPUSH", self._keys.recall, question)
                self._call("PEXPIRE", self._keys.recall, KEPT_MS)
                asked = now
            answer = self._call("GET", self._keys.recalled(self._client))
            found = _unpack_answer(answer, self._number) if isinstance(answer, bytes) else None
            if found is not None:
                return found
            if now - began > self._patience_s:
                raise GapError(f"no archiver of run {self._keys.run} has answered for {self._patience_s:g} s")
            time.sleep(POLL_S)

    def _call(self, *arguments: bytes | str | int) -> Reply:
        return persist(lambda: self._connection.call(*arguments), self._patience_s)


class Recalling:
    """Answers such questions from the recording in `folder`, in a thread of its own, while the `with` block runs."""

    def __init__(self, url: str, run: str, folder: Path) -> None:
        self._keys = Keys(run)
        self._folder = folder
        self._connection = Connection(url)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="recalling", daemon=True)

    def __enter__(self) -> Recalling:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Does not wait for the thread, which may wait for a question: it ends by itself."""
        self._ending.set()

    def _serve(self) -> None:
        while not self._ending.is_set():
            try:
                asked = self._connection.call("BLPOP", self._keys.recall, WAIT_S)
                if isinstance(asked, list) and isinstance(asked[1], bytes):
                    self._answer(asked[1])
            except LogUnavailable:
                self._ending.wait(WAIT_S)
            except SwingshiftError as error:
                logger.warning("a late reader was not answered: error=%s", error)
                self._ending.wait(WAIT_S)
        self._connection.close()

    def _answer(self, question: bytes) -> None:
        try:
            client, number, *what = msgpack.unpackb(question)
            key = self._keys.recalled(str(client))
            answer = [number, "", *self._look_up(what)]
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            logger.warning("a late reader asked in no way that is known: error=%s", error)
            return
        except SwingshiftError as error:
            answer = [number, str(error), "", []]
        self._connection.call("SET", key, msgpack.packb(answer), "PX", KEPT_MS)

    def _look_up(self, what: Sequence[object]) -> tuple[str, Sequence[object]]:
        match what:
            case [int(after), int(limit)]:
                return self._read(after, min(limit, MOST_ROWS))
            case [list(names)]:
                return "", self._payloads([str(name) for name in names])
            case _:
                raise ValueError(f"{len(what)} parts")

    def _payloads(self, names: Sequence[str]) -> list[tuple[str, bytes | None]]:
        """The first of `names`, each with its payload, None: it is not recorded."""
        found: list[tuple[str, bytes | None]] = []
        size = 0
        with PayloadRecording.open(self._folder) as recording:
            for name in names:
                try:
                    data = recording.get(name)
                except BlobMissing:
                    found.append((name, None))
                    continue
                size += len(data)
                if found and size > MOST_BYTES:
                    break
                found.append((name, data))
        return found

    def _read(self, after: int, limit: int) -> Recorded:
        rows: list[Row] = []
        size = 0
        with Recording.open(self._folder) as recording:
            for row in recording.rows(after + 1, after + limit):
                size += len(row.body)
                if rows and size > MOST_BYTES:
                    break
                rows.append(row)
            return Recorded(recording.log_id, rows)


def _unpack_answer(answer: bytes, number: int) -> tuple[str, list[object]] | None:
    """What was answered to question `number`; None: this is the answer to another one. Raises GapError, CodecError."""
    try:
        answered, error, log_id, found = msgpack.unpackb(answer)
    except (ValueError, msgpack.UnpackException) as broken:
        raise CodecError(f"an answer of the archiver cannot be read: {broken}; client and archiver do not fit") from broken
    if answered != number:
        return None
    if error:
        raise GapError(f"the archiver cannot read its recording: {error}")
    return str(log_id), list(found)
