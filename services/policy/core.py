"""The policy service's core: one policy, asked at each boundary.

boundary v opens  ──▶ SwitchRequested(answers=v)                    a shadow: ShadowVerdict(answers=v)
PolicyAttached while the devices are lent ──▶ SwitchRequested(amends=swing), once an incarnation
SwitchDone(rollout), if the policy wants to ──▶ RebalanceRequested
in mid-cycle, if the policy wants to ──▶ SwitchRequested(answers=None)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from bus.core import Deadline, Request
from bus.entry import Entry
from bus.errors import PolicyFailed
from bus.events import (
    Event,
    PolicyAttached,
    RebalanceRequested,
    ShadowVerdict,
    SwitchDone,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
)
from bus.requests import ANSWERING
from policies.protocol import Policy, Verdict
from policies.view import ScheduleView
from services.policy.answers import Fault, choice_faults, number_faults, shown, verdict_faults

SOURCE = "policy"
"""Source of the active policy; a shadow's is `policy:LABEL`."""
MAX_EXTRAS = 8
"""Requests in mid-cycle that a policy may make in one cycle; its further ones are not asked for."""

Mode = Literal["active", "shadow"]
Answer = TypeVar("Answer")
Faults = Callable[[object], Iterator[Fault]]
"""What is wrong with an answer."""


def source_of(label: str, mode: Mode) -> str:
    """The source under which a policy appends."""
    return SOURCE if mode == "active" else f"{SOURCE}:{label}"


def label_of(source: str) -> str:
    """The label of the shadow that appends under this source; empty if no shadow does."""
    return source.removeprefix(f"{SOURCE}:") if source.startswith(f"{SOURCE}:") else ""


class PolicyCore:
    """A `bus.core.Core` around a policy."""

    def __init__(self, policy: Policy, mode: Mode = "active", label: str = "") -> None:
        self.source = source_of(label or policy.name, mode)
        self.view = ScheduleView()
        self._policy = policy
        self._mode = mode
        self._shadow_answered = -1
        self._to_amend: int | None = None
        """The lend that was under way when the newest active policy attached, until its numbers are that policy's."""
        self._to_rebalance: int | None = None
        """The lend for which the policy wants the requests spread anew, until it is asked for."""
        self._extras_left = MAX_EXTRAS
        self._extra_waits = True
        """What was asked last, a boundary included, has not led to anything yet: an extra request would only be `busy`."""

    @property
    def policy(self) -> Policy:
        """Who is asked."""
        return self._policy

    def apply(self, entry: Entry) -> None:
        if type(entry.event) in ANSWERING:
            return
        decided = self.view.boundaries_decided
        self.view.apply(entry)
        if self.view.boundaries_decided > decided:
            self._extras_left = MAX_EXTRAS
            self._extra_waits = True
            self._ask(self._policy.decided)
        match entry.event:
            case SwitchDone(target="rollout", swing=swing):
                self._note_lend(swing)
            case RebalanceRequested(reason="policy"):
                self._to_rebalance = None
            case PolicyAttached(mode="active"):
                lend = self.view.swings.lend
                self._to_amend = lend.swing if lend is not None else None
            case SwitchRequested(answers=None) as event:
                self._note_extra(event)
            case SwitchStarted() | SwitchRejected() | TrainGranted():
                self._extra_waits = False
            case ShadowVerdict(answers=int(version)) if entry.source == self.source:
                self._shadow_answered = version
            case _:
                pass

    def decide(self) -> Event | None:
        if self.view.ended:
            return None
        if self.view.is_open:
            return self._answer()
        if self._mode == "shadow":
            return None
        return self._rebalance() or self._amendment() or self._extra()

    def outstanding(self) -> Sequence[Request]:
        return ()

    def deadlines(self) -> Sequence[Deadline]:
        return ()

    def answer_to(self, view: ScheduleView) -> SwitchRequested:
        """What it would request at the open boundary of a view that is like its own. Raises PolicyFailed."""
        assert view.boundary is not None
        return self._request(self._ask(self._policy.verdict, verdict_faults, view), answers=view.boundary.version)

    def number(self) -> int:
        """Ready samples at which it would give back now. Raises PolicyFailed."""
        return self._ask(self._policy.give_back_at, number_faults)

    def _ask(self, question: Callable[[ScheduleView], Answer], faults: Faults | None = None, view: ScheduleView | None = None) -> Answer:
        """The policy's own code may be a user's: whoever hears of it can tell its mistakes from a broken log."""
        said = f"policy {self._policy.name}: {question.__name__}"
        try:
            answer = question(self.view if view is None else view)
        except SystemExit as error:
            raise PolicyFailed(f"{said} called sys.exit({'' if error.code is None else shown(error.code)})") from error
        except Exception as error:
            raise PolicyFailed(f"{said} raised {type(error).__name__}: {error}") from error
        fault = next(faults(answer), None) if faults is not None else None
        if fault is not None:
            raise PolicyFailed(f"{said} answered {fault.got}, expected: {fault.expected}")
        return answer

    def _note_extra(self, event: SwitchRequested) -> None:
        if event.amends is not None and event.amends == self._to_amend:
            self._to_amend = None
            return
        self._extras_left -= 1
        if event.amends is None:
            self._extra_waits = True

    def _note_lend(self, swing: int) -> None:
        lend, plan = self.view.swings.lend, self.view.books.plan
        if lend is None or lend.swing != swing or plan is None:
            return
        self._ask(self._policy.lent)
        wants = self._mode == "active" and plan.enable_rebalance and self._ask(self._policy.rebalance, choice_faults)
        self._to_rebalance = swing if wants else None

    def _rebalance(self) -> Event | None:
        lend = self.view.swings.lend
        return RebalanceRequested(reason="policy") if lend is not None and lend.swing == self._to_rebalance else None

    def _answer(self) -> Event | None:
        boundary = self.view.boundary
        assert boundary is not None
        if self._mode == "active":
            return self.answer_to(self.view)
        if self._shadow_answered >= boundary.version:
            return None
        return ShadowVerdict(**self.answer_to(self.view).model_dump())

    def _amendment(self) -> Event | None:
        lend = self.view.swings.lend
        if lend is None or lend.swing != self._to_amend:
            return None
        return self._request(Verdict("rollout", self.number(), "attached"), amends=lend.swing)

    def _extra(self) -> Event | None:
        if self._extras_left <= 0 or self._extra_waits or not self.view.asks_boundaries:
            return None
        verdict = self._ask(self._policy.extra, _extra_faults)
        if verdict is None:
            return None
        lend = self.view.swings.lend
        if lend is not None:
            request = self._request(verdict, amends=lend.swing)
            if request.target == "rollout":
                # The view holds amended numbers at once, so a policy that asks for what it has does not go round in circles.
                return request if request.give_back_at != lend.give_back_at else None
        return self._request(verdict) if self.view.swings.running is None else None

    def _request(self, verdict: Verdict, answers: int | None = None, amends: int | None = None) -> SwitchRequested:
        return SwitchRequested(
            target=verdict.target,
            answers=answers,
            amends=amends,
            give_back_at=verdict.give_back_at,
            max_lent_s=verdict.max_lent_s,
            reason=verdict.reason,
            evidence=dict(verdict.evidence),
        )


def _extra_faults(answer: object) -> Iterator[Fault]:
    return verdict_faults(answer) if answer is not None else iter(())
