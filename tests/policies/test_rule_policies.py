"""What the built-in policies answer on hand-written logs. R = 4, K = 2, so a cycle has S = 8 samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.entry import Entry
from bus.events import DeadlineMissed, SwitchRequested, Value
from policies.default import DefaultRule
from policies.protocol import Policy, Verdict
from policies.registry import create
from policies.rule import BoundaryContext
from policies.view import RunShape, ScheduleView
from tests.policies.logs import Story, plan


class Watched:
    """A policy on a view, told of each decided boundary."""

    def __init__(self, name: str, **params: Value) -> None:
        self.policy: Policy = create(name, params)
        self.view = ScheduleView()

    def take(self, entry: Entry) -> None:
        decided = self.view.boundaries_decided
        self.view.apply(entry)
        if self.view.boundaries_decided > decided:
            self.policy.decided(self.view)

    def verdict(self) -> Verdict:
        assert self.view.is_open
        return self.policy.verdict(self.view)


def watched(name: str, planned_standalone: tuple[str, ...] = ("s0",), **params: Value) -> tuple[Story, Watched]:
    seen = Watched(name, **params)
    story = Story(plan(standalone=planned_standalone), seen.take)
    story.open_first_boundary()
    return story, seen


def answer(story: Story, seen: Watched) -> Verdict:
    """The boundary is answered as the policy says; what it lends for comes back before the next cycle."""
    verdict = seen.verdict()
    assert seen.view.boundary is not None
    story.write(request(verdict, seen.view.boundary.version))
    return verdict


def request(verdict: Verdict, version: int) -> SwitchRequested:
    return SwitchRequested(
        target=verdict.target, answers=version, amends=None, give_back_at=verdict.give_back_at, max_lent_s=0.0, reason="", evidence={}
    )


# --- default


def test_default_lends_at_the_start_when_nothing_is_ready() -> None:
    _, seen = watched("default", deactivate_ratio=0.5)
    verdict = seen.verdict()
    assert (verdict.target, verdict.give_back_at, verdict.reason) == ("rollout", 4, "gain_over_cost")
    expected = {"ratio": 0.5, "gap": 12.0, "sample_s": 1000.0, "cost_s": 10.0, "generated": 0.0, "expected": 8.0}
    assert verdict.evidence == expected


def test_default_does_not_lend_when_its_share_of_a_cycle_is_ahead() -> None:
    story, seen = watched("default", deactivate_ratio=0.5)
    story.grant()
    story.step()
    story.samples(8)
    story.step()
    verdict = seen.verdict()
    assert (verdict.target, verdict.reason, verdict.evidence["gap"]) == ("train", "no_gap", 0.0)


def test_default_gives_back_by_the_ratio_that_this_boundary_makes() -> None:
    story, seen = watched("default", deactivate_ratio=0.5)
    assert answer(story, seen).give_back_at == 4
    story.cycle(wait_s=60.0, lacking=3)
    verdict = seen.verdict()
    assert (verdict.target, verdict.give_back_at, verdict.evidence["ratio"]) == ("rollout", 4, 0.5)
    story.write(request(verdict, 1))
    assert seen.policy.give_back_at(seen.view) == 4
    story.cycle(wait_s=60.0, lacking=3)
    verdict = answer(story, seen)
    assert (verdict.give_back_at, verdict.evidence["ratio"]) == (5, 0.6)
    assert seen.policy.give_back_at(seen.view) == 5


def test_default_values_a_lacking_sample_by_what_the_cycle_waited() -> None:
    story, seen = watched("default", deactivate_ratio=0.5)
    story.grant()
    story.step(wait_s=6.0, lacking=3)
    story.step(wait_s=2.0, lacking=1)
    verdict = seen.verdict()
    assert (verdict.evidence["sample_s"], verdict.evidence["gap"]) == (2.0, 4.0)
    assert (verdict.target, verdict.reason) == ("train", "cost_over_gain")


def test_default_keeps_the_value_of_a_sample_when_nothing_was_lacking_or_there_is_no_gap() -> None:
    story, seen = watched("default", deactivate_ratio=0.5)
    story.grant()
    story.cycle(wait_s=6.0, lacking=3)
    assert answer(story, seen).evidence["sample_s"] == 2.0
    story.cycle(wait_s=9.0)
    assert answer(story, seen).evidence["sample_s"] == 2.0
    story.step(wait_s=4.0, lacking=1)
    story.samples(20)
    story.step()
    story.publish(3)
    assert answer(story, seen).evidence["sample_s"] == 2.0
    story.step()
    story.step()
    assert seen.verdict().evidence["sample_s"] == 2.0


def test_default_knows_the_cost_of_a_boundary_only_at_the_next_one() -> None:
    story, seen = watched("default", deactivate_ratio=0.5)
    costs = []
    for version, (lend_s, return_s) in enumerate([(2.0, 1.0), (4.0, 3.0), (6.0, 5.0), (8.0, 7.0), (20.0, 9.0), (30.0, 11.0)]):
        costs.append(answer(story, seen).evidence["cost_s"])
        story.lend(lend_s, answers=version)
        story.give_back(return_s)
        story.cycle()
    # Boundary v costs the lend it decided and the return of the cycle before it; boundary 0 records none.
    recorded = {1: 4.0 + 1.0, 2: 6.0 + 3.0, 3: 8.0 + 5.0, 4: 20.0 + 7.0}
    assert costs == [10.0, 10.0, 5.0, 7.0, 9.0, (recorded[2] + recorded[3] + recorded[4]) / 3]


def test_default_records_the_return_of_a_lend_alone_and_nothing_for_a_quiet_cycle() -> None:
    story, seen = watched("default", deactivate_ratio=0.5)
    answer(story, seen)
    story.lend(2.0, answers=0)
    story.give_back(3.0)
    story.cycle()
    costs = []
    for _ in range(3):
        costs.append(answer(story, seen).evidence["cost_s"])
        story.cycle()
    assert costs == [10.0, 3.0, 3.0]


def test_default_updates_itself_also_when_its_answer_came_too_late() -> None:
    story, seen = watched("default", deactivate_ratio=0.5)
    story.write(DeadlineMissed(key="verdict:0", seconds=5.0))
    assert seen.policy.give_back_at(seen.view) == 4
    story.cycle(wait_s=6.0, lacking=3)
    story.write(DeadlineMissed(key="verdict:1", seconds=5.0))
    story.write(request(Verdict("rollout", 4, ""), 1))
    story.grant()
    assert seen.policy.give_back_at(seen.view) == int(8 * 0.6)


def test_default_without_standalone_replicas_always_lends_and_gives_back_a_full_cycle() -> None:
    story, seen = watched("default", planned_standalone=(), deactivate_ratio=0.5)
    for _ in range(3):
        verdict = answer(story, seen)
        assert (verdict.target, verdict.give_back_at, verdict.reason) == ("rollout", 8, "only_hybrid")
        story.cycle()


def test_a_setting_makes_a_run_with_standalone_replicas_hybrid_only() -> None:
    _, seen = watched("default", deactivate_ratio=0.5, only_hybrid=True)
    assert seen.verdict().give_back_at == 8


def test_c42_a_long_calm_phase_does_not_wind_the_ratio_up_and_starvation_is_answered_at_once() -> None:
    story, seen = watched("default", deactivate_ratio=0.5)
    story.grant()
    for _ in range(200):
        story.cycle()
        answer(story, seen)
    assert seen.policy.give_back_at(seen.view) == 0
    story.cycle(wait_s=400.0, lacking=4)
    calm = answer(story, seen)
    assert (calm.target, calm.evidence["ratio"]) == ("train", 0.0)
    story.cycle(wait_s=400.0, lacking=4)
    verdict = seen.verdict()
    assert (verdict.target, verdict.evidence["ratio"]) == ("rollout", 0.1)


@given(st.lists(st.integers(0, 8), max_size=120), st.floats(0, 1))
def test_c42_the_ratio_stays_between_0_and_1_whatever_the_waits(lacking: list[int], ratio: float) -> None:
    shape = RunShape(4, 2, 0.5, only_hybrid=False)
    rule = DefaultRule(ratio)
    for version, count in enumerate(lacking):
        rule = rule.updated(BoundaryContext(shape, version, 8 * version, 8 * max(1, version), (1.0, 0.0), (count, 0)))
        assert 0.0 <= rule.ratio <= 1.0
        assert 0 <= rule.give_back_at(shape) <= 8


# --- the others


@pytest.mark.parametrize(("ahead", "target"), [(3, "rollout"), (4, "train"), (5, "train")])
def test_fixed_ratio_lends_below_its_share_of_a_cycle(ahead: int, target: str) -> None:
    story, seen = watched("fixed_ratio", deactivate_ratio=0.5)
    story.grant()
    story.step()
    story.samples(4 + ahead)
    story.step(wait_s=3.0)
    verdict = seen.verdict()
    assert (verdict.target, verdict.give_back_at) == (target, 4)
    assert verdict.evidence["generated"] - verdict.evidence["expected"] == ahead


def test_fixed_ratio_never_changes_its_ratio() -> None:
    story, seen = watched("fixed_ratio", deactivate_ratio=0.5)
    for _ in range(5):
        assert answer(story, seen).give_back_at == 4
        story.cycle(wait_s=3.0, lacking=4)


def test_fixed_ratio_without_standalone_replicas_always_lends() -> None:
    story, seen = watched("fixed_ratio", planned_standalone=(), deactivate_ratio=0.1)
    story.samples(12)
    story.grant()
    story.step()
    story.step()
    verdict = seen.verdict()
    assert (verdict.target, verdict.give_back_at) == ("rollout", 8)


@pytest.mark.parametrize("standalone", [(), ("s0",)])
def test_static_fully_async_never_lends_and_gives_back_at_once(standalone: tuple[str, ...]) -> None:
    story, seen = watched("static_fully_async", planned_standalone=standalone)
    for _ in range(3):
        verdict = answer(story, seen)
        assert (verdict.target, verdict.give_back_at) == ("train", 0)
        story.cycle(wait_s=30.0, lacking=4)


# --- all


cycles = st.lists(
    st.tuples(st.integers(0, 4), st.floats(0, 50), st.booleans(), st.floats(0.1, 40), st.integers(0, 6), st.integers(0, 3)), max_size=12
)


@given(cycles, st.sampled_from(["default", "fixed_ratio", "static_fully_async"]))
def test_asking_for_a_verdict_changes_nothing(told: list[tuple[int, float, bool, float, int, int]], name: str) -> None:
    story, asked = watched(name, deactivate_ratio=0.4)
    silent = Watched(name, deactivate_ratio=0.4)
    for entry in story.entries:
        silent.take(entry)
    story.listeners.append(silent.take)
    for version, (lacking, wait_s, lends, swing_s, ahead, times) in enumerate(told):
        verdicts = [asked.verdict() for _ in range(times)]
        numbers = [asked.policy.give_back_at(asked.view) for _ in range(times)]
        assert all(verdict == silent.verdict() for verdict in verdicts)
        assert all(number == silent.policy.give_back_at(silent.view) for number in numbers)
        story.write(request(Verdict("rollout" if lends else "train", 4, ""), version))
        if lends:
            story.lend(swing_s, answers=version)
            story.give_back(swing_s / 3)
        story.samples(ahead)
        story.cycle(wait_s, min(lacking, 4 - min(4, len(asked.view.books.ready))))
    assert asked.verdict() == silent.verdict()
    assert asked.policy.give_back_at(asked.view) == silent.policy.give_back_at(silent.view)
