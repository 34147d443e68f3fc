"""A policy that catches up: its state is the rebuild, however the log reached it."""

from __future__ import annotations

import pytest

from bus.entry import Entry
from bus.errors import CoreError, PolicyFailed
from bus.events import PolicyAttached, SwitchRequested
from bus.host import rebuild
from bus.snapshot import freeze
from policies.protocol import Verdict
from policies.registry import create
from policies.static_fully_async import StaticFullyAsync, StaticFullyAsyncParams
from policies.view import ScheduleView
from services.policy.core import PolicyCore
from services.policy.newcomer import Newcomer, Overtaken, answer_in_trial
from tests.policies.logs import Story, plan

NAME = "fixed_ratio"


def core() -> PolicyCore:
    return PolicyCore(create(NAME, {}))


def rebuilt(entries: list[Entry]) -> bytes:
    again = core()
    rebuild(again, entries)
    return freeze(again)


def run_of_a_policy(cycles: int = 4) -> list[Entry]:
    """A log in which a policy answers every boundary, its answers some entries behind what they answer."""
    story = Story(plan())
    story.attach(core(), PolicyAttached(name=NAME, params={}, mode="active", code=""))
    story.open_first_boundary()
    for _ in range(cycles):
        story.grant()
        story.cycle(wait_s=2.0, lacking=2)
    return story.entries


def late(entries: list[Entry]) -> list[Entry]:
    """The same log, had the policy been slow: each answer stands three entries later."""
    slow = list(entries)
    for index in range(len(slow) - 4, 0, -1):
        if slow[index].derived and slow[index].source == "policy":
            slow[index : index + 4] = [*slow[index + 1 : index + 4], slow[index]]
    return [entry._replace(position=position, cause=_moved(entries, slow, entry)) for position, entry in enumerate(slow, 1)]


def _moved(before: list[Entry], after: list[Entry], entry: Entry) -> int:
    return after.index(before[entry.cause - 1]) + 1 if entry.cause else 0


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("known", [0, 7, 1000])
@pytest.mark.parametrize("size", [1, 5])
def test_its_state_is_the_rebuild_whatever_was_warmed_up_and_whatever_came_live(slow: bool, known: int, size: int) -> None:
    entries = late(run_of_a_policy()) if slow else run_of_a_policy()
    newcomer = Newcomer(core(), answer_in_trial)
    decisions = [entry for entry in entries if entry.derived and entry.source == "policy"]
    newcomer.warm_up(entries[:known], [entry for entry in decisions if entry.position <= known + 4], known + 4)
    while newcomer.position < len(entries):
        newcomer.take(entries[newcomer.position : newcomer.position + size])
    newcomer.finish()
    assert freeze(newcomer.core) == rebuilt(entries)
    assert newcomer.decided_at == {"SwitchRequested": decisions[-1].position}


def test_what_is_too_new_is_held_and_settled_by_a_decision_on_something_later() -> None:
    entries = run_of_a_policy()
    decision = next(entry for entry in entries if isinstance(entry.event, SwitchRequested))
    newcomer = Newcomer(core(), answer_in_trial)
    newcomer.take(entries[: decision.position - 1])
    assert newcomer.core.view.books.plan is None, "nothing is known of decisions yet"
    newcomer.take([decision])
    assert not newcomer.core.view.is_open, "the entry that it answers is held: another decision on it may come"
    assert newcomer.core.view.books.plan is not None


def test_a_decision_for_what_was_taken_for_settled_is_found() -> None:
    entries = late(run_of_a_policy())
    decision = next(entry for entry in entries if isinstance(entry.event, SwitchRequested))
    newcomer = Newcomer(core(), answer_in_trial)
    newcomer.take(entries[: decision.position - 1])
    newcomer.settle(decision.position - 1)
    with pytest.raises(Overtaken, match=f"was decided on entry {decision.cause}"):
        newcomer.take([decision])


def test_decisions_out_of_the_order_of_their_causes_are_named() -> None:
    entries = run_of_a_policy()
    first, second = [entry for entry in entries if isinstance(entry.event, SwitchRequested)][:2]
    newcomer = Newcomer(core(), answer_in_trial)
    with pytest.raises(CoreError, match="the log was not written by swingshift, or was changed"):
        newcomer.warm_up(entries, [second, first], len(entries))


class Raises(StaticFullyAsync):
    """Fails at the third boundary."""

    def verdict(self, view: ScheduleView) -> Verdict:
        if view.boundaries_decided == 2:
            raise ZeroDivisionError("no")
        return super().verdict(view)


def test_every_boundary_that_it_sees_is_answered_in_trial_and_nothing_is_appended() -> None:
    entries = run_of_a_policy()
    seen: list[int] = []

    def note(core: PolicyCore) -> None:
        assert core.view.boundary is not None
        seen.append(core.view.boundary.version)
        answer_in_trial(core)

    newcomer = Newcomer(core(), note)
    newcomer.warm_up(entries[:20], [entry for entry in entries if entry.derived], len(entries))
    newcomer.take(entries[20:])
    newcomer.settle(len(entries))
    assert seen == [0, 1, 2, 3, 4]
    with pytest.raises(PolicyFailed, match="verdict raised ZeroDivisionError: no"):
        Newcomer(PolicyCore(Raises(StaticFullyAsyncParams())), answer_in_trial).warm_up(
            entries, [entry for entry in entries if entry.derived], len(entries)
        )
