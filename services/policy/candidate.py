"""A candidate: warms up from the whole log, answers in trial, and attaches when it has caught up. Until then it changes nothing.

load ─▶ warm up ─▶ follow, a moment, so that what is too new to be sure of is little ─▶ PolicyAttached ─▶ the rest ─▶ answers
  └──────┴───────────┴─ it raises, is too slow, or its answer will not do: it says why (trial.py) and ends
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from bus.entry import Entry
from bus.errors import ConfigError, LogError, PolicyFailed, ServerError, SwingshiftError
from bus.events import RunEnded
from bus.history import History
from bus.snapshot import freeze
from policies.view import ScheduleView
from services.context import ServiceContext
from services.policy.answers import shown
from services.policy.core import PolicyCore
from services.policy.loading import told
from services.policy.newcomer import Newcomer, Overtaken, answer_in_trial, made_up_boundary
from services.policy.source import file_and_class, is_in_file
from services.policy.trial import Trial
from services.shell import Caught
from services.snapshots import Snapshots

logger = logging.getLogger(__name__)

READ_LIMIT = 512
BLOCK_MS = 10
ATTACHED_MS = 1_000
"""For what is in the log already."""
HELD_ENTRIES = 2_000
"""So many of the newest entries are followed one by one from the beginning: decisions on older ones are there."""
SETTLE_S = 0.3
"""For how long a decision on an entry may still come; longer after each time that this was wrong."""
MOST_TRIES = 6


class Ended(Exception):
    """The run ended before the candidate had caught up."""


class WillNotDo(ConfigError):
    """The policy failed in its trial; it has said why."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a candidate is to become."""

    make: Callable[[], PolicyCore]
    name: str


class Candidate:
    """Follows the log until it has caught up; `caught` then gives the shell the core."""

    def __init__(self, context: ServiceContext, choice: Choice, core: PolicyCore, trial: Trial, snapshots: Snapshots) -> None:
        self._context = context
        self._choice = choice
        self._trial = trial
        self._snapshots = snapshots
        self._history: History = context.open_history()
        self._newcomer = Newcomer(core, self._try_out)
        self._has_answered = False
        """It was asked for a verdict."""

    @property
    def core(self) -> PolicyCore:
        return self._newcomer.core

    def catch_up(self) -> None:
        """Raises WillNotDo; Ended when the run is over; LogError, ServerError."""
        settle_s = SETTLE_S
        for _ in range(MOST_TRIES):
            try:
                self._warm_up()
                self._follow(settle_s)
                self._try_out_now()
                return
            except Overtaken as error:
                logger.info("starts anew: %s", error)
                settle_s *= 2
                self._newcomer = Newcomer(self._choice.make(), self._try_out)
            except (Ended, WillNotDo, LogError, ServerError):
                raise
            except Exception as error:  # noqa: BLE001  (whatever a user's policy raises)
                self._fail(self._told(error))
        self._fail(f"the active policy answers later than {settle_s / 2:g} s after what it answers: its decisions cannot be told in time")

    def caught(self, own_start: int) -> Caught:
        """The core with the state of the log up to its own PolicyAttached."""
        newcomer, ended = self._newcomer, False
        try:
            while newcomer.position < own_start:
                entries = self._history.read(newcomer.position, own_start - newcomer.position, ATTACHED_MS)
                newcomer.take(entries)
                ended = ended or any(isinstance(entry.event, RunEnded) for entry in entries)
            newcomer.finish()
        except Overtaken as error:
            logger.warning("reads the log once more: %s", error)
            return Caught(self._choice.make(), None, ended=False)
        finally:
            self._history.close()
        return Caught(newcomer.core, newcomer.decided_at, ended)

    def _warm_up(self) -> None:
        newcomer, source = self._newcomer, self.core.source
        last = self._history.last_position()
        self._trial.at("warm_up")
        snapshot = self._snapshots.restore(self.core, self._history, last)
        if snapshot is not None:
            newcomer.restored(snapshot.position, dict(snapshot.decided_at or {}))
        after = newcomer.position
        through = max(after, last - HELD_ENTRIES)
        with self._context.open_history() as ahead:
            entries = self._passing(self._history.entries(after, through))
            newcomer.warm_up(entries, ahead.decisions(source, after, last), last)

    def _passing(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if isinstance(entry.event, RunEnded):
                raise Ended
            if entry.position % READ_LIMIT == 0:
                self._trial.at("warm_up", entry.position)
            yield entry

    def _follow(self, settle_s: float) -> None:
        """Until it has seen the log's end, and everything but what is newer than `settle_s` is settled."""
        newcomer = self._newcomer
        marks: deque[tuple[float, int]] = deque()
        settled = False
        while True:
            entries = self._history.read(newcomer.position, READ_LIMIT, BLOCK_MS)
            if entries:
                newcomer.take(list(self._passing(entries)))
            now = time.monotonic()
            marks.append((now, newcomer.position))
            while marks and marks[0][0] <= now - settle_s:
                newcomer.settle(marks.popleft()[1])
                settled = True
            self._trial.at(self._trial.stage, newcomer.position)
            if settled and len(entries) < READ_LIMIT:
                return

    def _try_out(self, core: PolicyCore) -> None:
        """The boundary that is open is answered, and nobody hears of it."""
        self._trial.at("answer", self._newcomer.position)
        self._ask_twice(core, core.view, lambda: answer_in_trial(core))
        self._has_answered = True
        self._trial.at("warm_up", self._newcomer.position)

    def _try_out_now(self) -> None:
        """Whatever there is to be said in the present state, and a verdict at least once."""
        self._trial.at("answer")
        core = self.core
        if core.view.asks_boundaries and not core.view.is_open and not self._has_answered:
            made_up = made_up_boundary(core.view)
            self._ask_twice(core, made_up, lambda: core.answer_to(made_up))
        self._ask_twice(core, core.view, lambda: answer_in_trial(core))
        self._ask_twice(core, core.view, core.number)

    def _ask_twice(self, core: PolicyCore, view: ScheduleView, question: Callable[[], object]) -> None:
        """Answers within the time that a verdict has, and the same again."""
        before, began = freeze(core.policy), time.monotonic()
        answer = question()
        seconds = time.monotonic() - began
        plan, boundary = view.books.plan, view.boundary
        if plan is not None and seconds > plan.deadlines.verdict_s:
            what = "its answer" if boundary is None else f"its answer to boundary {boundary.version}"
            self._fail(f"{what} took {seconds:.1f} s, deadlines.verdict_s is {plan.deadlines.verdict_s:g}")
        if freeze(core.policy) != before:
            self._fail("answering changes the policy: only decided(view) and lent(view) may change what it remembers")
        again = question()
        if again != answer:
            self._fail(f"answering changes the policy: asked twice in the same state, it said {shown(answer)}, then {shown(again)}")

    def _told(self, error: Exception) -> str:
        """What it raised, with the lines of the user's file that led to it."""
        if is_in_file(self._choice.name) and isinstance(error, PolicyFailed) and error.__cause__ is not None:
            return f"{error}\n{told(error.__cause__, file_and_class(self._choice.name)[0])}"
        return str(error) if isinstance(error, SwingshiftError) else f"{type(error).__name__}: {error}"

    def _fail(self, detail: str) -> NoReturn:
        self._trial.fails(detail)
        raise WillNotDo(f"policy {self._choice.name} will not do ({self._trial.stage}): {detail}")
