"""The folds under the summary: clocks, swings, replicas, training."""

from __future__ import annotations

from typing import Literal

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
    SampleMoved,
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
from services.monitor.run_clock import RunClock
from services.monitor.summary import Summary
from services.monitor.training import Distribution, Training, quarter
from tests.services.monitor.logs import Story, batch, finished, give_back, lend, ready, request, step_done

TICK = SampleMoved(sample=9, request="9.0", source="s9", reason="lost")
"""Nothing but time passes."""


def entry(source: str, epoch: int, at_s: float) -> Entry:
    return Entry(1, source, epoch, False, 0, round(at_s * 1e9), "", SampleDropped(sample=0, reason="stale"))


def folded(story: Story) -> Summary:
    summary = Summary()
    for item in story.entries:
        summary.apply(item)
    return summary


def device(summary: Summary, name: str) -> dict[str, float]:
    """Class -> seconds of a device."""
    (group,) = (group for group in summary.devices.groups if group.name == name)
    summary.totals()
    return {str(kind): seconds for kind, seconds in summary.devices.seconds(group).items()}


def wake(swing: int) -> WakeRequested:
    return WakeRequested(replica="h0", epoch=1, swing=swing, version=0, revision=0, uri="", digest="")


def sleep(swing: int) -> SleepRequested:
    return SleepRequested(replica="h0", epoch=1, swing=swing)


def abort(swing: int) -> AbortRequested:
    return AbortRequested(replica="h0", epoch=1, reason="swing", swing=swing)


def update(version: int, mode: Literal["abort", "keep"] = "abort") -> WeightUpdateRequested:
    return WeightUpdateRequested(replica="s0", epoch=1, version=version, revision=0, uri="", digest="", mode=mode)


# --- the run's clock -------------------------------------------------------------------------------------------------------------


def timed(*entries: Entry) -> list[float]:
    """The run's time at each entry, in seconds; positions are given here."""
    clock = RunClock()
    return [clock.apply(item._replace(position=position)) / 1e9 for position, item in enumerate(entries, 1)]


def test_clocks_that_are_set_differently_give_one_time() -> None:
    ours, theirs = entry("controller", 1, 10.0), entry("rollouter", 1, 9_000.0)
    assert timed(ours, theirs, entry("rollouter", 1, 9_002.0), entry("controller", 1, 15.0)) == [0.0, 0.0, 2.0, 5.0]


def test_services_of_one_host_read_one_clock() -> None:
    """The trainer says its first word after nine silent seconds; s0, on another host, after nine more that nobody can know of."""
    here, there = ServiceStarted(code="", host="a"), ServiceStarted(code="", host="b")
    first = entry("controller", 1, 1.0)._replace(event=here), entry("trainer", 1, 10.0)._replace(event=here)
    assert timed(*first, entry("replica:s0", 1, 700.0)._replace(event=there), entry("controller", 1, 20.0)) == [0.0, 9.0, 9.0, 19.0]


def test_nothing_is_lost_over_a_restart_while_somebody_else_lives() -> None:
    restarted = entry("controller", 2, 500.0)._replace(event=ServiceStarted(code="")), entry("controller", 2, 501.0)
    told = timed(entry("controller", 1, 10.0), entry("trainer", 1, 1.0), entry("trainer", 1, 31.0), *restarted)
    assert told == [0.0, 0.0, 30.0, 30.0, 31.0]


def test_a_clock_that_was_hung_up_too_early_is_moved_by_what_its_source_reacts_to() -> None:
    """The trainer's start is told in a silence: only what it reacts to later shows how late that was."""
    first = entry("controller", 1, 0.0), entry("trainer", 1, 0.0), entry("controller", 1, 10.0)
    reaction = entry("trainer", 1, 3.0)._replace(cause=3)
    assert timed(*first, reaction, entry("trainer", 1, 4.0)) == [0.0, 0.0, 10.0, 10.0, 11.0]


def test_time_never_goes_back_and_observers_and_operators_have_no_say() -> None:
    back = entry("controller", 1, 9.0)
    assert (
        timed(entry("controller", 1, 10.0), back, entry("monitor", 1, 5.0), entry("monitor", 1, 99.0), entry("operator", 0, 500.0))
        == [0.0] * 5
    )


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
    assert device(summary, "trainer") == {"generating": 7.0, "swinging": 8.0, "idle": 10.0}


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
    story = Story().open(10.0).rollouter(12.0, update(0)).rollouter(13.0, TICK)
    story.replica("s0", WeightsApplied(replica="s0", version=0, revision=0, seconds=0.0))
    story.rollouter(13.0, request(1)).rollouter(14.0, request(2)).rollouter(17.0, TICK).replica("s0", finished(1), finished(2))
    summary = folded(story.rollouter(17.0, ready(1)).rollouter(19.0, ready(2)))
    assert device(summary, "s0") == {"generating": 4.0, "updating": 1.0, "idle": 2.0 + 2.0}
    assert summary.replicas.by_name["s0"].version == 0
    assert summary.replicas.by_name["s0"].answers == 2


def test_answers_that_are_kept_over_an_update_generate_until_they_are_frozen_for_it() -> None:
    """Two slots are taken for 4 s, and 1.5 s of the 2 s between the request to update and its outcome they are frozen."""

    def utilization(mode: Literal["abort", "keep"]) -> float:
        story = Story().open(10.0).replica("s0", WeightsApplied(replica="s0", version=0, revision=0, seconds=0.0))
        story.rollouter(10.0, request(1), request(2)).rollouter(11.0, update(1, mode)).rollouter(13.0, TICK)
        summary = folded(story.replica("s0", WeightsApplied(replica="s0", version=1, revision=0, seconds=1.5)).rollouter(14.0, TICK))
        assert device(summary, "s0") == {"generating": 2.0, "updating": 2.0}
        share = summary.totals().rollout_utilization
        assert share is not None
        return share

    assert utilization("keep") == pytest.approx(utilization("abort") * 2.5 / 4)


def test_a_hybrid_replica_is_asleep_unless_routes_are_open_to_it() -> None:
    doing = list[str]()
    summary = Summary()
    for item in lent_story().entries:
        summary.apply(item)
        now = summary.replicas.doing().get("h0", "")
        if not doing or doing[-1] != now:
            doing.append(now)
    assert doing == ["starting", "asleep", "idle", "generate", "asleep"]


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
        training.apply(event, ready=0)
    return training


def test_staleness_is_the_distance_to_the_version_that_was_trained() -> None:
    training = trained(ready(1, 0), ready(2, 2), ready(3, 3), batch(1, 1, 2, 3), step_done(1, version=3))
    assert training.staleness == {3: 1, 1: 1, 0: 1}
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


def test_the_trainers_own_seconds_are_added_up_whatever_goes_on_besides() -> None:
    published = WeightsPublished(version=1, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=0.25)
    saved = CheckpointSaved(step=1, version=1, position=1, uri="", digest="", seconds=0.5)
    training = trained(ready(1), batch(1, 1), step_done(1, wait=2.0, train=3.0), published, saved, saved)
    assert training.seconds == {"wait": 2.0, "train": 3.0, "optimizer": 0.1, "publish": 0.25, "checkpoint": 1.0}


def test_log_probability_differences_and_ready_samples_are_kept_step_by_step() -> None:
    training = Training()
    for step, difference in enumerate((0.25, 0.75), 1):
        done = step_done(step).model_copy(update={"metrics": {"rollout/logprob_diff_mean": difference, "actor/loss": 1.0}})
        training.apply(done, ready=step + 3)
    assert training.logprob_diff == {"rollout/logprob_diff_mean": [0.25, 0.75]}
    assert training.ready == [4, 5]


@pytest.mark.parametrize(
    ("numbers", "first", "last"),
    [([], None, None), ([1.0], 1.0, 1.0), ([1.0, 2.0, 3.0], 1.0, 3.0), ([float(n) for n in range(8)], 0.5, 6.5)],
)
def test_quarters_hold_at_least_one_number(numbers: list[float], first: float | None, last: float | None) -> None:
    assert (quarter(numbers, last=False), quarter(numbers, last=True)) == (first, last)
