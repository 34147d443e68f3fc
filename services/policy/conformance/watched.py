"""A policy under observation: what it answered, whether that is sound, and how long it thought."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from bus.events import Value
from policies.protocol import Policy, Verdict
from policies.view import ScheduleView
from services.policy.answers import Fault, choice_faults, number_faults, shown, verdict_faults

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unsound:
    """An answer that is none."""

    method: str
    version: int
    """The newest boundary."""
    expected: str
    got: str


class Watched:
    """Stands in for the policy in a run; a `policies.protocol.Policy` itself."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.unsound: list[Unsound] = []
        self.boundary_s: dict[int, float] = {}
        """By boundary: seconds of processor time for the answer and for what it led to."""
        self.other_s = 0.0
        """Seconds of all other questions."""
        self.others = 0

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def params(self) -> dict[str, Value]:
        return self.policy.params

    def verdict(self, view: ScheduleView) -> Verdict:
        answer = self._at_boundary(self.policy.verdict, view)
        self._check("verdict", view, answer)
        return answer

    def give_back_at(self, view: ScheduleView) -> int:
        answer = self._between(self.policy.give_back_at, view)
        self._note_all("give_back_at", view, number_faults(answer))
        return answer

    def decided(self, view: ScheduleView) -> None:
        self._at_boundary(self.policy.decided, view)

    def lent(self, view: ScheduleView) -> None:
        self._between(self.policy.lent, view)

    def extra(self, view: ScheduleView) -> Verdict | None:
        answer = self._between(self.policy.extra, view)
        if answer is not None:
            self._check("extra", view, answer)
        return answer

    def rebalance(self, view: ScheduleView) -> bool:
        answer = self._between(self.policy.rebalance, view)
        self._note_all("rebalance", view, choice_faults(answer))
        return answer

    def _at_boundary(self, question: Callable[[ScheduleView], T], view: ScheduleView) -> T:
        began = time.thread_time()
        answer = question(view)
        version = _version(view)
        self.boundary_s[version] = self.boundary_s.get(version, 0.0) + time.thread_time() - began
        return answer

    def _between(self, question: Callable[[ScheduleView], T], view: ScheduleView) -> T:
        began = time.thread_time()
        answer = question(view)
        self.other_s += time.thread_time() - began
        self.others += 1
        return answer

    def _check(self, method: str, view: ScheduleView, answer: object) -> None:
        faults = list(verdict_faults(answer))
        self._note_all(method, view, faults)
        most = view.books.limit
        if not faults and isinstance(answer, Verdict) and answer.target == "rollout" and answer.give_back_at > most:
            what = f"give_back_at of at most {most}: no more samples can be ready under the staleness limit"
            self.unsound.append(Unsound(method, _version(view), what, f"give_back_at {shown(answer.give_back_at)}"))

    def _note_all(self, method: str, view: ScheduleView, faults: Iterable[Fault]) -> None:
        self.unsound += [Unsound(method, _version(view), fault.expected, fault.got) for fault in faults]


def _version(view: ScheduleView) -> int:
    return -1 if view.boundary is None else view.boundary.version
