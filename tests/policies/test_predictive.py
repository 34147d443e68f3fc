"""`predictive`: when it lends and takes back, on hand-written logs and in short runs of the queueing model."""

from __future__ import annotations

import pytest

from benchmarks.queueing.driven import Driven, drive
from benchmarks.queueing.regime import Regime, Regimes
from bus.entry import Entry
from bus.events import (
    ReplicaAdded,
    RoutesOpened,
    RunPlanned,
    SettingChanged,
    SwitchDone,
    SwitchRequested,
    Value,
)
from policies.lengths import estimate
from policies.predictive import MOST_RETURNS
from policies.registry import create
from policies.situation import FIRST_COST_S, situation, swing_s
from policies.view import ScheduleView
from tests.policies.logs import Story, plan

STARVED = Regimes.load().by_name["starved"].model_copy(update={"cycles": 8})


def watched(regime: Regime, seed: int = 1, **settings: Value) -> tuple[Driven, list[Entry]]:
    entries: list[Entry] = []
    lengths = regime.sample_lengths(seed)
    return drive(regime, lengths, create("predictive", settings), entries.append), entries


def requests(entries: list[Entry]) -> list[SwitchRequested]:
    return [entry.event for entry in entries if isinstance(entry.event, SwitchRequested)]


def told(planned: RunPlanned | None = None) -> tuple[Story, ScheduleView]:
    view = ScheduleView()
    story = Story(planned or plan(rollout_n=1), view.apply)
    if story.plan.standalone:
        story.write(ReplicaAdded(replica="s0", role="standalone", slots=2, seconds=1.0), "replica:s0")
    story.write(ReplicaAdded(replica="h0", role="hybrid", slots=2, seconds=1.0), "replica:h0")
    story.open_first_boundary()
    return story, view


def experienced(cycles: int = 4) -> tuple[Story, ScheduleView]:
    story, view = told()
    story.grant()
    for _ in range(cycles):
        story.cycle()
        story.grant()
    return story, view


# --- what it does


def test_the_first_boundary_lends_until_the_first_batch_since_the_trainer_has_nothing_to_do_anyway() -> None:
    _, view = told()
    verdict = create("predictive", {}).verdict(view)
    assert (verdict.target, verdict.give_back_at, verdict.reason) == ("rollout", 4, "explores")


def test_a_policy_that_knows_nothing_does_not_lend_devices_that_have_a_batch() -> None:
    story, view = told()
    story.samples(4)
    assert create("predictive", {}).verdict(view).target == "train"


def test_where_samples_are_scarce_it_lends_and_takes_back_before_all_are_ready() -> None:
    result, entries = watched(STARVED)
    assert result.lends >= 7
    asked = requests(entries)
    assert {event.reason for event in asked} >= {"explores", "ends_sooner", "rest_in_time"}
    returns = [event for event in asked if event.reason == "rest_in_time"]
    assert all(16 <= event.give_back_at <= 48 for event in returns)
    assert result.rejected == 0


def test_where_samples_abound_it_lends_no_more_than_to_explore() -> None:
    rich = Regimes.load().by_name["rich"].model_copy(update={"cycles": 8})
    assert watched(rich)[0].lends == 1


def test_it_lends_in_mid_cycle_when_the_trainer_waits_for_samples_that_grew_longer() -> None:
    bursty = Regimes.load().by_name["bursty"].model_copy(update={"cycles": 11})
    result, entries = watched(bursty, margin=10.0, margin_in_cycle=0.0)
    assert result.extra_lends > 0
    assert "trainer_waits" in {event.reason for event in requests(entries)}


def test_costlier_swings_never_make_it_lend_more() -> None:
    lends = []
    for cost in (0.0, 60.0, 600.0):
        regime = STARVED.model_copy(update={"activate_seconds": cost, "deactivate_seconds": cost / 3, "cycles": 8})
        lends.append(watched(regime)[0].lends)
    assert lends == sorted(lends, reverse=True)
    assert lends[-1] <= 2


def test_with_hybrids_only_the_devices_are_lent_until_the_samples_of_the_cycle_are_ready() -> None:
    story, view = told(plan(rollout_n=1, standalone=(), hybrid=("h0",)))
    policy = create("predictive", {})
    assert policy.verdict(view).target == "rollout"
    for _ in range(4):
        story.lend()
        story.write(RoutesOpened(swing=1, replicas=("h0",)))
        story.pass_seconds(10.0)
        story.samples(8)
        story.give_back()
        story.grant()
        story.cycle()
        policy.decided(view)
    verdict = policy.verdict(view)
    assert (verdict.target, verdict.reason) == ("rollout", "ends_sooner")
    assert verdict.give_back_at >= 8
    assert verdict.evidence["stay_s"] == 1e9


def test_the_last_cycle_leaves_no_work_of_any_worth() -> None:
    story, view = told(plan(rollout_n=1, total_steps=10))
    for _ in range(4):
        story.cycle()
    policy = create("predictive", {})
    assert policy.verdict(view).evidence["price"] == 0.0


def test_at_the_end_of_the_data_it_still_answers() -> None:
    story, view = told(plan(rollout_n=1, num_prompts=34))
    for _ in range(4):
        story.cycle()
    policy = create("predictive", {})
    assert policy.verdict(view).target == "train"


def test_what_the_controller_lent_by_itself_is_not_taken_back() -> None:
    story, view = experienced()
    policy = create("predictive", {})
    swing = story.start_lend(reason="starved", give_back_at=100)
    story.write(SwitchDone(swing=swing, target="rollout", replicas=("h0",)))
    story.samples(1)
    assert view.moment == "ready"
    assert policy.extra(view) is None


def test_a_staleness_limit_that_changes_live_changes_what_may_be_started() -> None:
    story, view = experienced()
    lengths = estimate(view.in_flight)
    assert lengths is not None
    before = situation(view, lengths, 1.0, lent=False).now
    story.write(SettingChanged(name="staleness_threshold", value=2.0))
    after = situation(view, lengths, 1.0, lent=False).now
    assert len(after.fresh) == len(before.fresh) + 12


# --- the numbers it starts from


def test_swings_cost_ten_seconds_until_measured_but_never_much_of_a_cycle() -> None:
    _, view = told()
    assert sum(swing_s(view, 1e6)) == FIRST_COST_S
    assert sum(swing_s(view, 20.0)) == 1.0


def test_swings_cost_what_the_last_ones_did() -> None:
    story, view = told()
    for seconds in (50.0, 3.0, 4.0, 5.0, 6.0):
        story.lend(seconds)
        story.give_back(seconds / 2)
    assert swing_s(view, 1e6) == (4.5, 2.25)


def test_evidence_is_bounded_and_finite_whatever_the_size_of_a_cycle() -> None:
    sizes = [STARVED, STARVED.model_copy(update={"R": 64, "standalone_slots": 128, "hybrid_slots": 128, "cycles": 3})]
    for regime in sizes:
        for request in requests(watched(regime)[1]):
            assert len(request.evidence) <= MOST_RETURNS + 16
            assert all(abs(value) <= 1e9 for value in request.evidence.values())


def test_a_large_cycle_is_decided_as_a_small_one_of_the_same_shape() -> None:
    large = STARVED.model_copy(update={"R": 64, "standalone_slots": 128, "hybrid_slots": 128})
    small_s, large_s = watched(STARVED)[0].seconds, watched(large)[0].seconds
    assert large_s == pytest.approx(small_s, rel=0.1)


def test_the_same_log_gives_the_same_requests() -> None:
    short = STARVED.model_copy(update={"cycles": 3})
    assert requests(watched(short)[1]) == requests(watched(short)[1])
