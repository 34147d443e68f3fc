"""The folds under the summary: clocks, swings, replicas, training."""

from __future__ import annotations

import pytest

from bus.entry import Entry
from bus.events import (
    AbortRequested,
    CheckpointSaved,
    CutRoutesRequested,
    DevicesYielded,
    Event,
    OpenRoutesRequested,
    ReloadRequested,
    ReplicaLost,
    RoutesCut,
    RoutesOpened,
    SampleDropped,
    ServiceLost,
    ServiceStarted,
    SleepRequested,
    SwitchDone,
    SwitchRejected,
    WakeRequested,
    WeightsApplied,
    WeightsPublished,
    WeightUpdateRequested,
    YieldRequested,
)
from services.monitor.clocks import ClassClock
from services.monitor.summary import Summary
from services.monitor.training import Distribution, Training, quarter
from tests.services.monitor.logs import Story, batch, finished, give_back, lend, ready, request, step_done


def entry(source: str, epoch: int, at_s: float) -> Entry:
    return Entry(1, source, epoch, False, 0, round(at_s * 1e9), "", SampleDropped(sample=0, reason="stale"))


def folded(story: Story) -> Summary:
    summary = Summary()
    for item in story.entries:
        summary.apply(item)
    return summary


def wake(swing: int) -> WakeRequested:
    return WakeRequested(replica="h0", epoch=1, swing=swing, version=0, revision=0, uri="", digest="")


def sleep(swing: int) -> SleepRequested:
    return SleepRequested(replica="h0", epoch=1, swing=swing)


def abort(swing: int) -> AbortRequested:
    return AbortRequested(replica="h0", epoch=1, reason="swing", swing=swing)


def update(version: int) -> WeightUpdateRequested:
    return WeightUpdateRequested(replica="s0", epoch=1, version=version, revision=0, uri="", digest="")


# --- clocks ----------------------------------------------------------------------------------------------------------------------


def test_time_belongs_to_what_was_the_case_at_the_entry_before() -> None:
    clock = ClassClock("controller")
    clock.tick(entry("controller", 1, 10.0), {"a": "home", "b": "idle"})
    clock.tick(entry("controller", 1, 13.0), {"a": "lent", "b": "idle"})
    clock.tick(entry("controller", 1, 14.0), {"a": "home", "b": "idle"})
    assert clock.split("a") == {"home": 3.0, "lent": 1.0}
    assert clock.split("b") == {"idle": 4.0}
    assert clock.total_s == 4.0


def test_entries_of_another_source_do_not_move_a_clock() -> None:
    clock = ClassClock("controller")
    clock.tick(entry("controller", 1, 10.0), {"a": "home"})
    clock.tick(entry("trainer", 1, 99.0), {"a": "lent"})
    clock.tick(entry("controller", 1, 12.0), {"a": "home"})
    assert clock.split("a") == {"home": 2.0}


def test_no_difference_is_taken_over_a_restart() -> None:
    clock = ClassClock("controller")
    clock.tick(entry("controller", 1, 10.0), {"a": "home"})
    clock.tick(entry("controller", 2, 500.0), {"a": "home"})
    clock.tick(entry("controller", 2, 501.0), {"a": "home"})
    assert (clock.total_s, clock.restarts) == (1.0, 1)


def test_a_clock_that_was_set_back_adds_nothing() -> None:
    clock = ClassClock("controller")
    clock.tick(entry("controller", 1, 10.0), {"a": "home"})
    clock.tick(entry("controller", 1, 9.0), {"a": "home"})
    assert clock.total_s == 0.0


# --- swings ----------------------------------------------------------------------------------------------------------------------


def lent_story() -> Story:
    """A lend of 3 seconds and a return of 5."""
    story = Story().open(10.0)
    story.controller(20.0, lend(1), YieldRequested(swing=1)).trainer(DevicesYielded(swing=1, seconds=0.4))
    story.controller(20.5, wake(1)).controller(22.0, OpenRoutesRequested(swing=1, replicas=("h0",)))
    story.rollouter(22.5, RoutesOpened(swing=1, replicas=("h0",))).controller(23.0, SwitchDone(swing=1, target="rollout", replicas=("h0",)))
    story.rollouter(23.0, request(1, "h0", swing=1), request(2, "h0", swing=1, prefix_tokens=3)).replica("h0", finished(1, "h0", 6))
    story.controller(30.0, give_back(2), CutRoutesRequested(swing=2)).rollouter(30.5, RoutesCut(swing=2)).controller(31.0, abort(2))
    story.replica("h0", finished(2, "h0", 7, outcome="aborted")).controller(32.0, sleep(2)).controller(34.0, ReloadRequested(swing=2))
    return story.controller(35.0, SwitchDone(swing=2, target="train"))


def test_a_swing_costs_what_its_phases_cost() -> None:
    first, second = folded(lent_story()).swings.all
    assert (first.seconds, first.phases) == (3.0, {"yield": 0.5, "wake": 1.5, "open": 1.0})
    assert (second.seconds, second.phases) == (5.0, {"cut": 1.0, "abort": 1.0, "sleep": 2.0, "reload": 1.0})
    assert (first.outcome, second.outcome) == ("done", "done")


def test_what_lent_devices_generated_is_counted_without_the_prefix() -> None:
    first, second = folded(lent_story()).swings.all
    assert (first.lent_tokens, second.lent_tokens) == (6 + 4, 0)


def test_holders_follow_the_swings() -> None:
    summary, holders = Summary(), list[str]()
    for item in lent_story().entries:
        summary.apply(item)
        if not holders or holders[-1] != summary.swings.holder:
            holders.append(summary.swings.holder)
    assert holders == ["home", "swinging", "lent", "swinging", "home"]
    assert summary.devices.split("trainer") == {"home": 10.0, "swinging": 8.0, "lent": 7.0}


def test_a_swing_over_a_restart_of_the_controller_has_no_seconds() -> None:
    story = Story().open(10.0).controller(20.0, lend(1)).controller(21.0, wake(1)).controller(500.0, ServiceStarted(code=""))
    (swing,) = folded(story.controller(501.0, SwitchDone(swing=1, target="rollout"))).swings.all
    assert (swing.outcome, swing.seconds, swing.phases) == ("done", None, {})


@pytest.mark.parametrize(("first", "holder"), [(lend(1), "home"), (give_back(1), "lent")])
def test_a_rejected_swing_leaves_the_devices_where_they_were(first: Event, holder: str) -> None:
    story = Story().open(10.0).controller(20.0, first).controller(21.0, SwitchRejected(request=0, swing=1, reason="busy"))
    summary = folded(story)
    assert summary.swings.holder == holder
    assert (summary.swings.all[0].outcome, summary.swings.all[0].seconds) == ("busy", 1.0)


def test_a_rejection_of_a_request_ends_no_swing() -> None:
    story = Story().open(10.0).controller(20.0, lend(1)).controller(21.0, SwitchRejected(request=3, swing=0, reason="late"))
    assert folded(story).swings.running is not None


# --- replicas --------------------------------------------------------------------------------------------------------------------


def test_a_standalone_replica_generates_while_it_has_requests_in_flight() -> None:
    story = Story().open(10.0)
    story.rollouter(12.0, update(0)).replica("s0", WeightsApplied(replica="s0", version=0, revision=0, seconds=0.0))
    story.rollouter(13.0, request(1)).rollouter(14.0, request(2)).replica("s0", finished(1), finished(2))
    story.rollouter(17.0, ready(1)).rollouter(19.0, ready(2))
    summary = folded(story)
    assert summary.lanes.split("s0") == {"idle": 2.0 + 2.0, "update": 1.0, "generate": 4.0}
    assert summary.replicas.by_name["s0"].version == 0
    assert summary.replicas.by_name["s0"].answers == 2


def test_a_hybrid_replica_is_asleep_unless_routes_are_open_to_it() -> None:
    summary = folded(lent_story().rollouter(40.0, ready(1)))
    assert summary.lanes.split("h0") == {"asleep": 12.5 + 9.5, "idle": 0.5, "generate": 7.5}


def test_a_lost_replica_has_nothing_in_flight_and_its_successor_starts() -> None:
    story = Story().open(10.0).rollouter(11.0, request(1))
    story.say("supervisor", 0.0, ServiceLost(service="replica:s0", epoch=1, restarting=True)).controller(
        12.0, ReplicaLost(replica="s0", epoch=1)
    )
    assert folded(story).replicas.doing()["s0"] == "lost"
    assert folded(story).replicas.in_flight("s0") == 0
    assert folded(story.replica("s0", ServiceStarted(code=""))).replicas.doing()["s0"] == "starting"


def test_a_late_loss_of_an_older_incarnation_does_not_touch_the_newer() -> None:
    story = Story().open(10.0).replica("s0", ServiceStarted(code="")).controller(12.0, ReplicaLost(replica="s0", epoch=1))
    assert folded(story).replicas.doing()["s0"] == "starting"


# --- training --------------------------------------------------------------------------------------------------------------------


def trained(*events: Event) -> Training:
    training = Training()
    for event in events:
        training.apply(event, home=True)
    return training


def test_staleness_is_the_distance_to_the_version_that_was_trained() -> None:
    training = trained(ready(1, 0), ready(2, 2), ready(3, 3), batch(1, 1, 2, 3), step_done(1, version=3))
    assert training.staleness == [3, 1, 0]
    assert training.staleness_of_trained() == Distribution(0, 4 / 3, 3)
    assert trained().staleness_of_trained() is None


def test_a_second_outcome_of_a_step_or_a_sample_counts_for_nothing() -> None:
    training = trained(
        ready(1, reward=0.25), ready(1, reward=0.75), batch(1, 1), step_done(1, wait=2.0), step_done(1, wait=2.0, reward=0.9)
    )  # fmt: skip
    assert (training.rewards, training.waits_s, training.tokens) == ([0.25], [2.0], 5)


def test_the_reward_of_a_step_is_its_metric_else_that_of_its_samples() -> None:
    training = trained(
        ready(1, reward=0.25), ready(2, reward=0.75), batch(1, 1, 2), step_done(1),
        ready(3), batch(2, 3), step_done(2, reward=0.9),
    )  # fmt: skip
    assert training.rewards == [0.5, 0.9]


def test_the_trainers_seconds_are_told_apart() -> None:
    published = WeightsPublished(version=1, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=0.25)
    saved = CheckpointSaved(step=1, version=1, position=1, uri="", digest="", seconds=0.5)
    training = trained(ready(1), batch(1, 1), step_done(1, wait=2.0, train=3.0), published, saved)
    training.apply(saved, home=False)
    assert training.seconds == {"wait": 2.0, "load": 0.0, "train": 3.0, "publish": 0.25, "checkpoint": 0.5}


@pytest.mark.parametrize(
    ("numbers", "first", "last"),
    [([], None, None), ([1.0], 1.0, 1.0), ([1.0, 2.0, 3.0], 1.0, 3.0), ([float(n) for n in range(8)], 0.5, 6.5)],
)
def test_quarters_hold_at_least_one_number(numbers: list[float], first: float | None, last: float | None) -> None:
    assert (quarter(numbers, last=False), quarter(numbers, last=True)) == (first, last)
