"""What a replica hears, each from a thread of its own, in one queue for its main thread.

inbox ──(reader)──▶ ┐
end of the log ───▶ ├─ get ──▶ main thread         outputs: those alone, while the engine pauses; the rest waits
engine ─(poller)──▶ ┘
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from bus.entry import Entry
from bus.errors import GapError
from bus.events import KillRequested, RunEnded
from services.context import ServiceContext
from services.engines.protocol import Engine, GenerateOutput
from services.shell import BLOCK_MS, GATHER_S, READ_LIMIT

logger = logging.getLogger(__name__)

Mail = list[Entry] | list[GenerateOutput] | BaseException

POLL_S = 0.5
KILLED = 4
"""Exit code after a KillRequested."""
END_WINDOW = 512
"""Newest entries among which RunEnded is looked for; after it there are only the last words, and what was in flight."""


class Mailbox:
    """`run_ended` is called from another thread once the run has ended, when that is in the mail."""

    def __init__(self, context: ServiceContext, run_ended: Callable[[], None]) -> None:
        self._context = context
        self._run_ended = run_ended
        self._mail: queue.Queue[Mail] = queue.Queue()
        self._later: deque[Mail] = deque()
        """What came while only outputs were wanted: it goes first."""
        self._ending = threading.Event()

    def follow(self, position: int, epoch: int) -> None:
        """From now on there is mail from the inbox behind `position`, and word of the run's end. A KillRequested of `epoch` is obeyed."""
        for target, arguments in ((self._read_inbox, (position, epoch)), (self._watch_run, (position,))):
            threading.Thread(target=self._forward_errors, args=(target, *arguments), name=target.__name__, daemon=True).start()

    def poll(self, engine: Engine) -> None:
        """From now on there is mail from the engine."""
        threading.Thread(target=self._forward_errors, args=(self._poll_engine, engine), name="poller", daemon=True).start()

    def get(self) -> Mail:
        """The next mail; an error is one that ended a thread."""
        return self._later.popleft() if self._later else self._mail.get()

    def outputs(self, timeout_s: float) -> list[GenerateOutput]:
        """The next outputs of the engine, none when the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                mail = self._mail.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return []
            outputs = [item for item in mail if isinstance(item, GenerateOutput)] if isinstance(mail, list) else []
            if outputs:
                return outputs
            self._later.append(mail)

    def close(self) -> None:
        """Its threads end soon."""
        self._ending.set()

    def _forward_errors(self, target: Callable[..., None], *arguments: object) -> None:
        try:
            target(*arguments)
        except BaseException as error:  # noqa: BLE001  (the main thread must hear of it, whatever it is)
            self._mail.put(error)

    def _read_inbox(self, position: int, epoch: int) -> None:
        log = self._context.open_log()
        while not self._ending.is_set():
            entries = log.read_inbox(self._context.name, position, READ_LIMIT, BLOCK_MS)
            self._obey_kill(entries, epoch)
            if entries:
                position = entries[-1].position
                self._mail.put(entries)
                time.sleep(GATHER_S)

    def _obey_kill(self, entries: Sequence[Entry], epoch: int) -> None:
        """Ends the process from the reading thread: the main one may hang in the engine, which is why somebody wants it gone."""
        for entry in entries:
            event = entry.event
            if isinstance(event, KillRequested) and event.epoch == epoch and not self._context.in_process:
                logger.error("killed on request: reason=%s", event.reason)
                os._exit(KILLED)

    def _watch_run(self, position: int) -> None:
        """The end of the run is not in the inbox: it is found at the end of the log, once in a while."""
        log = self._context.open_log()
        # It may have ended before this incarnation's first word.
        position = max(0, position - END_WINDOW)
        while not self._ending.wait(BLOCK_MS / 1000):
            seen = max(position, log.last_position() - END_WINDOW)
            try:
                entries = log.read(seen, END_WINDOW)
            except GapError:
                # A log that was lost and goes on has no older entries, and had not ended.
                position = log.last_position() - 1
                continue
            position = entries[-1].position if entries else position
            ended = [entry for entry in entries if isinstance(entry.event, RunEnded)]
            if ended:
                self._mail.put(ended)
                self._run_ended()
                return

    def _poll_engine(self, engine: Engine) -> None:
        while not self._ending.is_set():
            outputs = engine.poll(POLL_S)
            if outputs:
                self._mail.put(outputs)
