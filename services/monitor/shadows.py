"""Where shadows would have answered otherwise than the active policy, and what that is estimated to be worth.

    boundary v opens ─▶ the active one's answer ─┬─ the same ─▶ agree
                     └▶ a shadow's answer ───────┴─ another one ─▶ differ ─ v's cycle ends ─▶ seconds by `services.monitor.cycle_model`

Each boundary is taken by itself, from where the active policy had led the run: a shadow that had decided before would stand elsewhere.
Each is taken at its word: what a policy would ask for in mid-cycle is in neither. With `Pace` as it is known when the cycle has ended. A
boundary whose seconds cannot be estimated is counted as such and adds nothing; the model's own error is measured on what did happen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import fsum

from bus.books import Books
from bus.entry import Entry
from bus.events import BoundaryOpened, RunEnded, ShadowVerdict, StepDone, SwitchRejected, SwitchRequested, SwitchStarted
from policies.view import decides
from services.monitor.cycle_model import Answer, Outset, Pace, cycle_seconds, saved_seconds
from services.monitor.pace import PaceFold
from services.monitor.policy_history import Chosen, PolicyHistory, Shadow
from services.monitor.run_clock import NANOSECONDS

KEPT_BOUNDARIES = 32
"""How far a shadow may be behind: an answer to an older boundary is not compared."""
KEPT_DIFFERENCES = 16
MOST_COMPARISONS = 64
KEPT_ERRORS = 64


@dataclass
class Difference:
    """A boundary to which a shadow said something else."""

    boundary: int
    position: int
    """Of the entry that opened it."""
    active: Answer
    shadow: Answer
    saved_s: float | None = None
    """Seconds that the shadow's answer would have saved; negative: lost."""
    unknown: str = "the cycle has not ended"
    """Why there is no estimate; empty when there is one."""


@dataclass
class Comparison:
    """One shadow against one active policy."""

    label: str
    shadow: Chosen
    against: Chosen
    agree: int = 0
    differ: int = 0
    """Boundaries that both answered, and differently."""
    lend_instead: int = 0
    """Of those: the shadow would have lent, the active one did not."""
    keep_instead: int = 0
    estimated: int = 0
    """Of those that differ: how many have an estimate."""
    saved_s: float = 0.0
    """Sum of the estimates."""
    newest: deque[Difference] = field(default_factory=lambda: deque(maxlen=KEPT_DIFFERENCES))

    @property
    def compared(self) -> int:
        """Boundaries that both answered."""
        return self.agree + self.differ

    @property
    def saved_or_unknown_s(self) -> float | None:
        """The sum, if there is anything to sum; two that always agree save nothing."""
        return self.saved_s if self.estimated or not self.differ else None


@dataclass
class _Boundary:
    """A boundary, what was said to it, and what is needed to judge it."""

    version: int
    position: int
    outset: Outset
    opened: tuple[str, int, int]
    """Source, epoch and time of the entry that opened it."""
    is_open: bool = True
    answer: Answer | None = None
    """Of the active policy, in time."""
    by: Chosen | None = None
    """Who that is."""
    disturbed: bool = False
    """Something else than this answer had a say in its cycle: a rejection, a request in mid-cycle, a lend of the controller's own."""
    shadows: dict[str, tuple[Shadow, Answer]] = field(default_factory=dict)
    """Source -> who said what; the first word of each counts."""
    waiting: list[tuple[Comparison, Difference]] = field(default_factory=list)
    """Differences without an estimate."""
    pace: Pace | None = None
    missing: str = ""
    is_over: bool = False
    """Its cycle has ended."""


class ShadowComparisons:
    """Fold of a whole log. Feed it every entry once, in order, after the books and the history."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, Chosen, Chosen], Comparison] = {}
        """(label, shadow, active) -> comparison; the one that was compared last is the last."""
        self.left_out = 0
        self.model_errors_s: deque[float] = deque(maxlen=KEPT_ERRORS)
        """Modelled minus measured seconds of the newest cycles, as the active policy answered."""
        self.next_boundary = 0
        """The boundary that is open, else the next one to open."""
        self._pace = PaceFold()
        self._boundaries: deque[_Boundary] = deque(maxlen=KEPT_BOUNDARIES)

    @property
    def model_error_s(self) -> float | None:
        """Mean distance of modelled and measured seconds of a cycle; None while none was measured."""
        errors = self.model_errors_s
        return fsum(map(abs, errors)) / len(errors) if errors else None

    def apply(self, entry: Entry, books: Books, history: PolicyHistory) -> None:
        """Takes in one entry."""
        self._pace.apply(entry, books)
        match entry.event:
            case StepDone(is_boundary=True) as event if event.step == books.steps_done:
                self._end_cycle(entry)
                if not books.last_step_done:
                    self._open(entry, event.version + 1, books)
            case BoundaryOpened() as event if not self._boundaries:
                self._open(entry, event.version, books)
            case RunEnded():
                self._end_cycle(None)
            case ShadowVerdict(answers=int(version)) as event:
                self._take_shadow(entry.source, version, event, history)
            case SwitchRequested(answers=int(version)) as event:
                self._take_active(version, event, history)
            case _:
                self._disturb(entry)
                self._close(entry)

    # --- boundaries --------------------------------------------------------------------------------------------------------------

    @property
    def _newest(self) -> _Boundary | None:
        return self._boundaries[-1] if self._boundaries else None

    def _open(self, entry: Entry, version: int, books: Books) -> None:
        plan = books.plan
        if plan is None or not plan.hybrid or not plan.use_dynamic_resource_scheduling:
            return
        steps = max(0, plan.total_steps - books.steps_done)
        first = min(plan.trigger_parameter_sync_step, steps)
        outset = Outset(
            ready=len(books.ready),
            required_samples=plan.required_samples,
            steps=first,
            following_steps=min(plan.trigger_parameter_sync_step, steps - first),
            limit=books.limit,
            left=len(books.ready) + len(books.in_flight) + books.prompts_left,
            max_lent_s=plan.max_lent_s,
        )
        self._boundaries.append(_Boundary(version, entry.position, outset, (entry.source, entry.epoch, entry.at)))
        self.next_boundary = version

    def _close(self, entry: Entry) -> None:
        newest = self._newest
        if newest is not None and newest.is_open and decides(entry.event, newest.version):
            newest.is_open = False
            self.next_boundary = newest.version + 1

    def _disturb(self, entry: Entry) -> None:
        match entry.event:
            case SwitchRejected() | SwitchRequested() | SwitchStarted(reason="starved" | "evaluation") if self._newest is not None:
                self._newest.disturbed = True
            case _:
                pass

    def _end_cycle(self, entry: Entry | None) -> None:
        """`entry`: with which it ended; None: it was cut short."""
        newest = self._newest
        self._pace.end_cycle()
        if newest is None or newest.is_over:
            return
        newest.is_open, newest.is_over = False, True
        newest.pace, newest.missing = self._pace.known(), self._pace.missing()
        self.next_boundary = newest.version + 1
        for comparison, difference in newest.waiting:
            _estimate(newest, comparison, difference)
        newest.waiting.clear()
        if entry is not None:
            self._measure(newest, entry)

    def _measure(self, boundary: _Boundary, entry: Entry) -> None:
        """How far off the model was."""
        source, epoch, at = boundary.opened
        if boundary.answer is None or boundary.pace is None or boundary.disturbed or (entry.source, entry.epoch) != (source, epoch):
            return
        modelled, _ = cycle_seconds(boundary.answer, boundary.outset, boundary.pace)
        self.model_errors_s.append(modelled - (entry.at - at) / NANOSECONDS)

    # --- answers -----------------------------------------------------------------------------------------------------------------

    def _take_active(self, version: int, event: SwitchRequested, history: PolicyHistory) -> None:
        newest = self._newest
        if newest is None or newest.version != version or not newest.is_open or history.active is None:
            return
        newest.answer, newest.by, newest.is_open = _answer(event), history.active.chosen, False
        self.next_boundary = version + 1
        for shadow, answer in newest.shadows.values():
            self._compare(newest, shadow, answer)

    def _take_shadow(self, source: str, version: int, event: ShadowVerdict, history: PolicyHistory) -> None:
        shadow = history.shadows.get(source)
        boundary = next((found for found in self._boundaries if found.version == version), None)
        if shadow is None or boundary is None or source in boundary.shadows:
            return
        boundary.shadows[source] = (shadow, _answer(event))
        if boundary.answer is not None:
            self._compare(boundary, shadow, _answer(event))

    def _compare(self, boundary: _Boundary, shadow: Shadow, answer: Answer) -> None:
        assert boundary.answer is not None
        assert boundary.by is not None
        comparison = self._comparison(shadow.label, shadow.chosen, boundary.by)
        if boundary.answer.same_as(answer):
            comparison.agree += 1
            return
        comparison.differ += 1
        comparison.lend_instead += answer.lends and not boundary.answer.lends
        comparison.keep_instead += boundary.answer.lends and not answer.lends
        difference = Difference(boundary.version, boundary.position, boundary.answer, answer)
        comparison.newest.append(difference)
        if boundary.is_over:
            _estimate(boundary, comparison, difference)
        else:
            boundary.waiting.append((comparison, difference))

    def _comparison(self, label: str, shadow: Chosen, against: Chosen) -> Comparison:
        key = (label, shadow, against)
        found = self.all.pop(key, None) or Comparison(label, shadow, against)
        self.all[key] = found
        while len(self.all) > MOST_COMPARISONS:
            del self.all[next(iter(self.all))]
            self.left_out += 1
        return found


def _answer(event: SwitchRequested | ShadowVerdict) -> Answer:
    return Answer(event.target == "rollout", event.give_back_at, event.max_lent_s)


def _estimate(boundary: _Boundary, comparison: Comparison, difference: Difference) -> None:
    if boundary.pace is None:
        difference.unknown = boundary.missing
        return
    difference.saved_s = saved_seconds(difference.active, difference.shadow, boundary.outset, boundary.pace)
    difference.unknown = ""
    comparison.estimated += 1
    comparison.saved_s = fsum((comparison.saved_s, difference.saved_s))
