"""A policy that asks for what it can at every moment: in mid-cycle, while something runs, too late. The protocol must bear it."""

from __future__ import annotations

from collections.abc import Mapping

from bus.events import Value
from policies.protocol import Policy, Verdict
from policies.registry import create
from policies.view import ScheduleView


class Restless:
    """Lends at every other boundary, lends in mid-cycle, and wants the devices back at once or amends the number."""

    name = "restless"
    params: dict[str, Value] = {}  # noqa: RUF012  (the protocol's type)

    def __init__(self) -> None:
        self._turn = 0

    def verdict(self, view: ScheduleView) -> Verdict:
        return Verdict("rollout" if self._turn % 2 == 0 else "train", self.give_back_at(view), "restless")

    def give_back_at(self, view: ScheduleView) -> int:
        return 1 + self._turn % 3

    def decided(self, view: ScheduleView) -> None:
        self._turn += 1

    def lent(self, view: ScheduleView) -> None:
        self._turn += 1

    def extra(self, view: ScheduleView) -> Verdict | None:
        steps = view.books.steps_done + len(view.books.ready)
        if view.swings.lend is not None:
            return Verdict("train" if steps % 2 == 0 else "rollout", 1 + steps % 4, "restless")
        return Verdict("rollout", 1 + steps % 3, "restless")

    def rebalance(self, view: ScheduleView) -> bool:
        return self._turn % 2 == 1


def make_policy(name: str, params: Mapping[str, Value]) -> Policy:
    """A policy by name, this one among them."""
    return Restless() if name == "restless" else create(name, params)
