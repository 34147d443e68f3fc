"""`swingshift serve policy`: one process that keeps the run's policies, each in a process of its own, below it.

log ─▶ Keeper ─▶ the policy that counts, shadows, candidates        SIGTERM ─▶ they end in order
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from bus.entry import Draft, Producer
from bus.errors import Fenced, SwingshiftError
from bus.events import Event
from bus.history import History
from bus.log import Log
from services.context import ServiceContext
from services.exit_codes import FENCED
from services.launcher.keeper import Keeper
from services.launcher.local import LocalLauncher
from services.policy.roster import KINDS, Roster
from services.shell import Terminated

logger = logging.getLogger(__name__)

READ_LIMIT = 512
BLOCK_MS = 100
GATHER_S = 0.02
POLL_S = 0.02
TERM_S = 5.0
"""How long policies may take to end after SIGTERM."""
KILL_S = 10.0


def keep_policies(context: ServiceContext) -> None:
    """Until the run has ended. Raises Fenced when another keeper's policy took over, SwingshiftError when the active one is given up."""
    with context.open_log() as log, context.open_history() as history:
        Keeping(context, log, history).run()


@dataclass
class Keeping:
    """The loop around a keeper."""

    context: ServiceContext
    log: Log
    history: History
    position: int = 0
    roster: Roster = field(default_factory=Roster)

    def run(self) -> None:
        """See `keep_policies`."""
        context = self.context
        place = context.place
        launcher = LocalLauncher(place, keeps_logs=False)
        self._read_past()
        keeper = self.keeper = Keeper(
            place, launcher, context.config.supervisor, self.roster, self._say, self._drain, time.monotonic, says_losses=False
        )
        try:
            keeper.begin()
            while not keeper.ended and keeper.given_up is None:
                if self._read(BLOCK_MS):
                    time.sleep(GATHER_S)
                keeper.look()
            self._wait(context.config.supervisor.grace_s)
        except Terminated:
            self._end()
            raise
        finally:
            self._kill()
        if keeper.given_up == FENCED:
            raise Fenced("the policy of another keeper has taken over: only one `swingshift serve policy` can keep the policies of a run")
        if keeper.given_up is not None:
            raise SwingshiftError(f"the policy ended with exit code {keeper.given_up} once more and is not started again")

    def _read_past(self) -> None:
        """The policies that the run has had: most entries are not even decoded."""
        while rows := self.history.read_rows(self.position, READ_LIMIT):
            for row in rows:
                if row.kind in KINDS:
                    self.roster.apply(row.entry())
            self.position = rows[-1].position

    def _read(self, block_ms: int) -> bool:
        entries = self.history.read(self.position, READ_LIMIT, block_ms)
        for entry in entries:
            self.position = entry.position
            self.keeper.take(entry)
        return bool(entries)

    def _drain(self) -> None:
        while self._read(0):
            pass

    def _say(self, event: Event, cause: int, source: str) -> None:
        self.log.append(Producer(source, 0), [Draft(event, derived=False, cause=cause, at=time.time_ns())])

    def _wait(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        while self.keeper.running() and time.monotonic() < until:
            time.sleep(POLL_S)

    def _end(self) -> None:
        for _, handle in self.keeper.running():
            handle.terminate()
        self._wait(TERM_S)

    def _kill(self) -> None:
        for source, handle in self.keeper.running():
            logger.warning("did not end by itself: source=%s", source)
            handle.kill()
        self._wait(KILL_S)
