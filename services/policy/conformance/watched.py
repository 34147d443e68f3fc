"""A policy under observation: what it answered, whether that is sound, and how long it thought."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar, cast

from bus.events import Value
from policies.protocol import Policy, Verdict
from policies.view import ScheduleView

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
        self._check_number("give_back_at", view, answer)
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
        if not isinstance(answer, bool):
            self._note("rebalance", view, "True or False", answer)
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
        if not isinstance(answer, Verdict):
            self._note(method, view, "a Verdict: `lend(…)` or `keep(…)`", answer)
            return
        # Whatever its annotations say: a user's file is not type-checked.
        reason, give_back_at = cast(object, answer.reason), cast(object, answer.give_back_at)
        if answer.target not in ("train", "rollout"):
            self._note(method, view, "target 'rollout' (lend) or 'train' (do not)", answer.target)
        if not isinstance(reason, str) or not reason:
            self._note(method, view, "a reason, in a word", reason)
        if not _is_number(answer.max_lent_s) or answer.max_lent_s < 0:
            self._note(method, view, "max_lent_s in seconds, 0 for as the plan says", answer.max_lent_s)
        for key, value in dict(answer.evidence).items():
            if not _is_number(value):
                self._note(method, view, "evidence of finite numbers", f"{key}={value!r}")
        self._check_number(method, view, give_back_at)
        most = view.books.limit
        if answer.target == "rollout" and isinstance(give_back_at, int) and give_back_at > most:
            what = f"give_back_at of at most {most}: no more samples can be ready under the staleness limit"
            self._note(method, view, what, give_back_at)

    def _check_number(self, method: str, view: ScheduleView, answer: object) -> None:
        if isinstance(answer, bool) or not isinstance(answer, int) or answer < 0:
            self._note(method, view, "give_back_at as a whole number of ready samples, 0 or more", answer)

    def _note(self, method: str, view: ScheduleView, expected: str, got: object) -> None:
        self.unsound.append(Unsound(method, _version(view), expected, got if isinstance(got, str) else repr(got)))


def _version(view: ScheduleView) -> int:
    return -1 if view.boundary is None else view.boundary.version


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
