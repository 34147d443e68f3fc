"""The policy service's core on an in-memory log, driven by the host."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bus.entry import Draft, Entry
from bus.events import (
    DeadlineMissed,
    Event,
    PolicyAttached,
    RebalanceRequested,
    RunEnded,
    ShadowVerdict,
    SwitchDone,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    Target,
)
from bus.host import MAX_DECISIONS
from bus.memory_log import MemoryLog
from policies.protocol import Policy, Verdict
from policies.registry import create
from policies.rule import RatioParams, RulePolicy
from policies.static_fully_async import StaticFullyAsyncRule
from policies.view import ScheduleView
from services.policy.core import MAX_EXTRAS, Mode, PolicyCore, source_of
from tests.policies.logs import Story, plan


def attached(name: str, mode: Mode = "active") -> PolicyAttached:
    return PolicyAttached(name=name, params={}, mode=mode, code="c")


def join(story: Story, name: str = "default", mode: Mode = "active") -> PolicyCore:
    core = PolicyCore(create(name, {"deactivate_ratio": 0.5}), mode)
    story.attach(core, attached(name, mode))
    return core


def requests(story: Story) -> list[SwitchRequested]:
    return [entry.event for entry in story.entries if isinstance(entry.event, SwitchRequested)]


def answers(story: Story) -> list[int | None]:
    return [event.answers for event in requests(story)]


def verdicts(entries: Iterable[Entry]) -> list[ShadowVerdict]:
    return [entry.event for entry in entries if isinstance(entry.event, ShadowVerdict)]


# --- boundaries


def test_a_boundary_is_answered_once_with_the_entry_that_opened_it_as_cause() -> None:
    story = Story(plan())
    join(story)
    story.open_first_boundary()
    opened = len(story.entries) - 1
    story.samples(3)
    (entry,) = [entry for entry in story.entries if isinstance(entry.event, SwitchRequested)]
    assert (entry.source, entry.epoch, entry.derived, entry.cause) == ("policy", 1, True, opened)
    assert isinstance(entry.event, SwitchRequested)
    assert (entry.event.target, entry.event.answers, entry.event.amends, entry.event.give_back_at) == ("rollout", 0, None, 4)
    assert entry.event.max_lent_s == 0.0
    assert entry.event.evidence["gap"] == 12.0


def test_every_boundary_of_a_run_is_answered_exactly_once() -> None:
    story = Story(plan(total_steps=10))
    join(story)
    story.open_first_boundary()
    for _ in range(5):
        story.grant()
        story.cycle()
    assert answers(story) == [0, 1, 2, 3, 4]


def test_a_policy_that_attaches_while_a_boundary_is_open_answers_it() -> None:
    story = Story(plan())
    story.open_first_boundary()
    story.samples(2)
    join(story)
    assert answers(story) == [0]
    assert story.entries[-1].cause == len(story.entries) - 1


def test_a_policy_that_attaches_later_answers_no_decided_boundary() -> None:
    story = Story(plan())
    story.open_first_boundary()
    story.write(DeadlineMissed(key="verdict:0", seconds=5.0))
    join(story)
    assert answers(story) == []


def test_no_boundary_is_answered_without_dynamic_scheduling() -> None:
    story = Story(plan(use_dynamic_resource_scheduling=False))
    join(story)
    story.open_first_boundary()
    story.cycle()
    assert answers(story) == []


def test_nothing_is_requested_after_the_end_of_the_run() -> None:
    story = Story(plan())
    story.open_first_boundary()
    story.write(RunEnded(reason="failed"))
    join(story)
    assert answers(story) == []


def test_a_restarted_policy_goes_on_with_the_state_that_the_log_gives() -> None:
    story = Story(plan())
    join(story)
    story.open_first_boundary()
    story.grant()
    for _ in range(3):
        story.cycle(wait_s=6.0, lacking=3)
        story.grant()
    join(story)
    story.cycle(wait_s=6.0, lacking=3)
    steady = Story(plan())
    join(steady)
    steady.open_first_boundary()
    steady.grant()
    for _ in range(3):
        steady.cycle(wait_s=6.0, lacking=3)
        steady.grant()
    steady.cycle(wait_s=6.0, lacking=3)
    assert requests(story) == requests(steady)
    assert requests(story)[-1].evidence["ratio"] == 0.5 + 0.1 + 0.1 + 0.1


def test_what_is_recorded_counts_though_the_policy_would_have_answered_otherwise() -> None:
    story = Story(plan())
    story.open_first_boundary()
    recorded = request("train", answers=0, give_back_at=1)
    story.write(recorded, "policy", cause=len(story.entries), derived=True)
    story.grant()
    story.cycle()
    join(story)
    assert requests(story)[0] == recorded
    assert answers(story) == [0, 1]


def request(target: Target, answers: int | None, give_back_at: int, amends: int | None = None) -> SwitchRequested:
    return SwitchRequested(target=target, answers=answers, amends=amends, give_back_at=give_back_at, max_lent_s=0.0, reason="", evidence={})


def test_a_policy_has_nothing_outstanding_and_no_deadlines() -> None:
    core = PolicyCore(create("default", {}))
    assert (list(core.outstanding()), list(core.deadlines())) == ([], [])


# --- swap


def lent() -> Story:
    story = Story(plan())
    join(story)
    story.open_first_boundary()
    return story


def test_a_policy_that_attaches_while_the_devices_are_lent_amends_the_lend_once() -> None:
    story = lent()
    swing = story.lend(give_back_at=4, answers=0)
    core = join(story, "static_fully_async")
    story.samples(2)
    amendments = [event for event in requests(story) if event.amends is not None]
    assert [(event.amends, event.answers, event.target, event.give_back_at) for event in amendments] == [(swing, None, "rollout", 0)]
    assert core.view.swings.lend is not None
    assert core.view.swings.lend.give_back_at == 0


def test_a_policy_that_attaches_while_the_devices_are_being_lent_amends_the_swing() -> None:
    story = lent()
    swing = story.start_lend(answers=0)
    join(story, "static_fully_async")
    story.write(SwitchDone(swing=swing, target="rollout"))
    assert [event.amends for event in requests(story)] == [None, swing]


def test_every_incarnation_amends_for_itself() -> None:
    story = lent()
    swing = story.lend(answers=0)
    join(story, "static_fully_async")
    join(story, "fixed_ratio")
    assert [(event.amends, event.give_back_at) for event in requests(story)] == [(None, 4), (swing, 0), (swing, 4)]


def test_an_amendment_that_a_dead_incarnation_owed_is_made_by_its_successor() -> None:
    story = lent()
    swing = story.lend(answers=0)
    MemoryLog(story.store).attach("policy", Draft(attached("static_fully_async"), derived=False, cause=0, at=0))
    story.deliver()
    join(story, "static_fully_async")
    assert [event.amends for event in requests(story)] == [None, swing]


@pytest.mark.parametrize("going", ["home", "returning", "rejected"])
def test_nothing_is_amended_when_no_lend_is_under_way(going: str) -> None:
    story = lent()
    if going == "rejected":
        swing = story.start_lend(answers=0)
        story.write(SwitchRejected(request=3, swing=swing, reason="busy"))
    else:
        story.lend(answers=0)
        story.start_return()
    if going == "home":
        story.write(SwitchDone(swing=2, target="train"))
    join(story, "static_fully_async")
    assert [event.amends for event in requests(story)] == [None]


def test_a_shadow_that_attaches_amends_nothing_and_makes_nobody_amend() -> None:
    story = lent()
    story.lend(answers=0)
    join(story, "static_fully_async", "shadow")
    assert [event.amends for event in requests(story)] == [None]


# --- shadows


def test_a_shadow_says_at_each_boundary_what_it_would_have_requested() -> None:
    story = Story(plan())
    join(story, "static_fully_async")
    join(story, "default", "shadow")
    story.open_first_boundary()
    story.grant()
    story.cycle(wait_s=6.0, lacking=3)
    shadows = verdicts(story.entries)
    assert [(event.answers, event.target, event.give_back_at) for event in shadows] == [(0, "rollout", 4), (1, "train", 4)]
    assert [entry.source for entry in story.entries if isinstance(entry.event, ShadowVerdict)] == ["policy:default"] * 2
    assert [event.target for event in requests(story)] == ["train", "train"]


def test_a_shadow_of_the_active_policy_agrees_with_it_wherever_the_answers_land() -> None:
    story = Story(plan())
    join(story, "default", "shadow")
    story.open_first_boundary()
    pending: list[SwitchRequested] = []
    for version in range(6):
        # The active policy's answer lands after samples that were not there when the boundary opened.
        story.samples(version)
        pending.append(verdict_of(verdicts(story.entries)[-1]))
        story.write(pending[-1])
        story.cycle(wait_s=6.0, lacking=min(3, max(0, 4 - version)))
    prompt = Story(plan())
    join(prompt, "default", "shadow")
    prompt.open_first_boundary()
    for version in range(6):
        prompt.write(pending[version])
        prompt.samples(version)
        prompt.cycle(wait_s=6.0, lacking=min(3, max(0, 4 - version)))
    assert verdicts(story.entries) == verdicts(prompt.entries)


def verdict_of(shadow: ShadowVerdict) -> SwitchRequested:
    return SwitchRequested.model_validate(shadow.model_dump())


def test_a_shadow_answers_an_open_boundary_once_also_across_a_restart() -> None:
    story = Story(plan())
    story.open_first_boundary()
    join(story, "default", "shadow")
    story.samples(1)
    join(story, "default", "shadow")
    join(story, "fixed_ratio", "shadow")
    story.samples(1)
    assert [entry.source for entry in story.entries if isinstance(entry.event, ShadowVerdict)] == ["policy:default", "policy:fixed_ratio"]
    assert (source_of("default", "shadow"), source_of("default", "active")) == ("policy:default", "policy")


# --- rebalancing


class Spreading(RulePolicy):
    """Wants the requests spread anew at each lend, and counts the lends."""

    def __init__(self, name: str = "spreading", wants: bool = True) -> None:
        super().__init__(name, RatioParams(), StaticFullyAsyncRule(0.0))
        self.wants = wants
        self.lends = 0

    def lent(self, view: ScheduleView) -> None:
        self.lends += 1

    def rebalance(self, view: ScheduleView) -> bool:
        return self.wants


def rebalances(story: Story) -> list[tuple[str, int]]:
    """Who asked to have the requests spread anew, and on which entry."""
    return [(entry.source, entry.cause) for entry in story.entries if isinstance(entry.event, RebalanceRequested)]


def test_a_policy_is_asked_once_a_lend_whether_the_requests_are_to_be_spread_anew() -> None:
    story = Story(plan())
    policy = Spreading()
    story.attach(PolicyCore(policy), attached("spreading"))
    story.open_first_boundary()
    done = []
    for _ in range(2):
        story.lend()
        done.append(next(entry.position for entry in reversed(story.entries) if isinstance(entry.event, SwitchDone)))
        story.samples(3)
        story.give_back()
    assert rebalances(story) == [("policy", position) for position in done]
    assert policy.lends == 2


def test_a_policy_that_does_not_want_it_or_only_watches_or_may_not_spreads_nothing() -> None:
    story = Story(plan())
    story.attach(PolicyCore(Spreading(wants=False)), attached("spreading"))
    story.attach(PolicyCore(Spreading("watching"), "shadow"), attached("watching", "shadow"))
    story.lend()
    assert rebalances(story) == []
    story = Story(plan(enable_rebalance=False))
    policy = Spreading()
    story.attach(PolicyCore(policy), attached("spreading"))
    story.lend()
    assert (rebalances(story), policy.lends) == ([], 1)


def test_what_was_asked_for_is_not_asked_for_again_by_a_successor_but_by_a_newcomer_in_mid_lend() -> None:
    story = Story(plan())
    story.attach(PolicyCore(Spreading()), attached("spreading"))
    story.lend()
    story.attach(PolicyCore(Spreading()), attached("spreading"))
    story.samples(2)
    assert len(rebalances(story)) == 1
    story.give_back()
    story.attach(PolicyCore(Spreading(wants=False)), attached("spreading"))
    story.lend()
    story.attach(PolicyCore(Spreading()), attached("spreading"))
    assert len(rebalances(story)) == 2


def test_nothing_is_spread_anew_for_a_lend_that_is_over() -> None:
    story = Story(plan())
    story.lend()
    story.give_back()
    story.attach(PolicyCore(Spreading()), attached("spreading"))
    assert rebalances(story) == []


# --- requests in mid-cycle


class Restless(RulePolicy):
    """Always wants the devices lent, and back at a number it is told."""

    def __init__(self, target: Target = "rollout", give_back_at: int = 2) -> None:
        super().__init__("restless", RatioParams(), StaticFullyAsyncRule(0.0))
        self.wants = Verdict(target, give_back_at, "restless")

    def extra(self, view: ScheduleView) -> Verdict | None:
        return self.wants


def join_restless(story: Story, policy: Policy) -> None:
    story.attach(PolicyCore(policy), attached("restless"))
    story.open_first_boundary()
    story.grant()


def extras(story: Story) -> list[Event]:
    return [event for event in requests(story) if event.answers is None]


def test_an_extra_request_waits_for_its_outcome_before_the_next() -> None:
    story = Story(plan())
    join_restless(story, Restless())
    story.samples(3)
    assert extras(story) == [request_of("rollout", 2)]
    story.write(SwitchRejected(request=5, swing=0, reason="busy"))
    story.samples(3)
    assert len(extras(story)) == 2


def request_of(target: Target, give_back_at: int, amends: int | None = None) -> SwitchRequested:
    return request(target, None, give_back_at, amends).model_copy(update={"reason": "restless"})


def test_an_extra_request_while_the_devices_are_lent_amends_until_the_numbers_are_right() -> None:
    story = Story(plan())
    policy = Restless(give_back_at=2)
    join_restless(story, policy)
    story.write(SwitchStarted(swing=1, target="rollout", reason="verdict", give_back_at=2))
    story.samples(3)
    assert extras(story) == [request_of("rollout", 2)]
    policy.wants = Verdict("rollout", 3, "restless")
    story.samples(3)
    assert extras(story)[1:] == [request_of("rollout", 3, amends=1)]


def test_no_devices_are_requested_back_while_a_swing_runs() -> None:
    story = Story(plan())
    policy = Restless()
    join_restless(story, policy)
    policy.wants = Verdict("train", 0, "restless")
    swing = story.start_lend()
    assert len(extras(story)) == 1
    story.write(SwitchDone(swing=swing, target="rollout"))
    assert extras(story)[1:] == [request_of("train", 0)]


def test_a_policy_that_never_rests_is_asked_a_bounded_number_of_times_a_cycle() -> None:
    story = Story(plan())
    join_restless(story, Restless())
    for _ in range(3 * MAX_EXTRAS):
        story.write(SwitchRejected(request=5, swing=0, reason="busy"))
    assert len(extras(story)) == MAX_EXTRAS < MAX_DECISIONS
    story.cycle()
    story.grant()
    assert len(extras(story)) == MAX_EXTRAS + 1
