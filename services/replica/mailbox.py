"""What a replica hears, each from a thread of its own, in one queue for its main thread.

inbox, the run's end ──(reader)──▶ ┬─ get ──▶ main thread         outputs: those alone, while the engine pauses; the rest waits
engine ────────────────(poller)──▶ ┘
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.entry import Entry
from bus.events import KillRequested
from services.context import ServiceContext
from services.engines.protocol import Engine, GenerateOutput
from services.exit_codes import KILLED
from services.shell import BLOCK_MS, GATHER_S, READ_LIMIT

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over."""


Mail = list[Entry] | list[GenerateOutput] | Ended | BaseException

POLL_S = 0.5


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
        arguments = (self._read_inbox, position, epoch)
        threading.Thread(target=self._forward_errors, args=arguments, name="inbox", daemon=True).start()

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
        log, ended = self._context.open_log(), False
        while not self._ending.is_set():
            entries = log.read_inbox(self._context.name, position, READ_LIMIT, BLOCK_MS)
            self._obey_kill(entries, epoch)
            if entries:
                position = entries[-1].position
                self._mail.put(entries)
                time.sleep(GATHER_S)
            if log.ended_at() and not ended:
                ended = True
                self._mail.put(Ended())
                self._run_ended()

    def _obey_kill(self, entries: Sequence[Entry], epoch: int) -> None:
        """Ends the process from the reading thread: the main one may hang in the engine, which is why somebody wants it gone."""
        for entry in entries:
            event = entry.event
            if isinstance(event, KillRequested) and event.epoch == epoch and not self._context.in_process:
                logger.error("killed on request: reason=%s", event.reason)
                os._exit(KILLED)

    def _poll_engine(self, engine: Engine) -> None:
        while not self._ending.is_set():
            outputs = engine.poll(POLL_S)
            if outputs:
                self._mail.put(outputs)
