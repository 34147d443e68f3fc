"""From hand-written logs to what a policy sees."""

from __future__ import annotations

import pytest

from bus.entry import Entry
from bus.events import (
    BatchFormed,
    BoundaryOpened,
    DeadlineMissed,
    Event,
    RunPlanned,
    SampleDropped,
    SampleStarted,
    SettingChanged,
    StepDone,
    StopRequested,
    SwitchDone,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
    WaitSamples,
)
from policies.swings import RECENT, Lend
from policies.view import RECENT_SAMPLES, Boundary, RunShape, ScheduleView
from tests.policies.logs import SECOND, Story, plan, ready


def told(planned: RunPlanned | None = None) -> tuple[Story, ScheduleView]:
    view = ScheduleView()
    return Story(planned or plan(), view.apply), view


def requested(answers: int | None = None, amends: int | None = None, give_back_at: int = 4, max_lent_s: float = 0.0) -> SwitchRequested:
    return SwitchRequested(
        target="rollout", answers=answers, amends=amends, give_back_at=give_back_at, max_lent_s=max_lent_s, reason="", evidence={}
    )


def at_first_boundary(planned: RunPlanned | None = None) -> tuple[Story, ScheduleView]:
    story, view = told(planned)
    story.open_first_boundary()
    return story, view


def at_boundary_one() -> tuple[Story, ScheduleView]:
    story, view = at_first_boundary()
    story.grant()
    story.step()
    story.step()
    return story, view


# --- boundaries


def test_the_run_gives_its_shape() -> None:
    _, view = told()
    assert view.shape == RunShape(4, 2, 0.5, only_hybrid=False)
    assert (view.shape.cycle_samples, view.shape.buffer_samples) == (8, 4.0)
    assert [view.shape.expected_samples(version) for version in (0, 1, 2, 3)] == [8, 8, 16, 24]


def test_a_plan_without_standalone_replicas_is_hybrid_only() -> None:
    _, view = told(plan(standalone=()))
    assert view.shape.only_hybrid


def test_a_changed_staleness_threshold_changes_the_buffer() -> None:
    story, view = told()
    story.write(SettingChanged(name="staleness_threshold", value=1.0))
    assert view.shape.buffer_samples == 8.0


def test_boundary_zero_opens_when_the_controller_says_so() -> None:
    story, view = told()
    story.samples(3)
    assert view.boundary is None
    story.open_first_boundary()
    assert view.boundary == Boundary(version=0, generated=3, ready=3, in_flight=0)
    assert view.is_open


def test_boundary_zero_opens_once_only() -> None:
    story, view = at_first_boundary()
    story.write(requested(answers=0))
    story.write(BoundaryOpened(version=0))
    assert not view.is_open


def test_a_boundary_has_the_number_of_the_version_that_is_published_at_it() -> None:
    _, view = at_boundary_one()
    assert view.is_open
    assert view.boundary == Boundary(version=1, generated=8, ready=0, in_flight=0)


def test_generated_samples_are_those_ready_or_trained_and_dropped_ones_are_subtracted() -> None:
    story, view = at_first_boundary()
    story.grant()
    story.step()
    story.samples(9)
    story.write(SampleStarted(sample=13, version=0))
    story.write(SampleDropped(sample=12, reason="stale"))
    story.step()
    assert view.boundary == Boundary(version=1, generated=12, ready=4, in_flight=1)


@pytest.mark.parametrize(
    "answer",
    [
        requested(answers=1),
        DeadlineMissed(key="verdict:1", seconds=5.0),
        SwitchStarted(swing=1, target="rollout", reason="verdict", answers=1, give_back_at=4),
        TrainGranted(version=1, reason="deadline"),
    ],
    ids=lambda event: event.kind,
)
def test_the_first_answer_decides_a_boundary_and_later_ones_change_nothing(answer: Event) -> None:
    story, view = at_boundary_one()
    story.write(answer)
    assert not view.is_open
    assert view.boundaries_decided == 2
    for late in (requested(answers=1), DeadlineMissed(key="verdict:1", seconds=5.0), TrainGranted(version=1, reason="verdict")):
        story.write(late)
    assert view.boundaries_decided == 2


@pytest.mark.parametrize(
    "event",
    [
        requested(answers=0),
        requested(answers=2),
        requested(),
        requested(amends=1),
        DeadlineMissed(key="verdict:11", seconds=5.0),
        DeadlineMissed(key="wake:1", seconds=5.0),
        TrainGranted(version=0, reason="returned"),
        SwitchRejected(request=9, swing=0, reason="late"),
    ],
)
def test_what_answers_something_else_leaves_a_boundary_open(event: Event) -> None:
    story, view = at_boundary_one()
    story.write(event)
    assert view.is_open


def test_an_open_boundary_keeps_the_numbers_it_opened_with_however_late_the_answer() -> None:
    story, view = at_boundary_one()
    story.publish(1)
    story.samples(5)
    assert view.boundary == Boundary(version=1, generated=8, ready=0, in_flight=0)
    assert len(view.books.ready) == 5


@pytest.mark.parametrize("changes", [{"use_dynamic_resource_scheduling": False}, {"hybrid": ()}])
def test_no_boundary_is_asked_without_anything_to_lend(changes: dict[str, object]) -> None:
    story, view = at_first_boundary(plan(**changes))
    story.grant()
    story.cycle(wait_s=1.0, lacking=2)
    assert view.boundary is None
    assert not view.is_open
    story.step()
    assert view.wait_s == [0.0]


def test_no_boundary_opens_after_the_last_step() -> None:
    story, view = at_first_boundary(plan(total_steps=2))
    story.grant()
    story.cycle()
    assert not view.is_open


def test_no_boundary_opens_after_a_stop_was_requested() -> None:
    story, view = at_first_boundary()
    story.grant()
    story.step()
    story.write(StopRequested())
    story.step()
    assert not view.is_open


def test_a_step_redone_after_a_restart_is_neither_counted_nor_opens_its_boundary_again() -> None:
    story, view = at_first_boundary()
    story.grant()
    first = story.step(wait_s=2.0, lacking=1)
    story.epochs["trainer"] = 2
    story.write(first)
    second = story.step()
    assert view.wait_s == [2.0, 0.0]
    story.write(requested(answers=1))
    story.write(second)
    assert not view.is_open
    assert view.books.steps_done == 2


# --- waits


def test_waits_are_kept_for_each_step_of_the_cycle() -> None:
    story, view = at_first_boundary()
    story.grant()
    story.step(wait_s=1.5, lacking=3)
    story.step(wait_s=0.25)
    assert (view.wait_s, view.wait_n) == ([1.5, 0.25], [3, 0])


def test_a_step_that_asks_again_lacks_what_it_lacked_last() -> None:
    story, view = at_first_boundary()
    story.write(WaitSamples(step=1, need=4, have=0))
    story.write(WaitSamples(step=1, need=4, have=2))
    story.step()
    assert view.wait_n == [2]


def test_an_ask_counts_for_its_own_step_only() -> None:
    story, view = at_first_boundary()
    story.write(WaitSamples(step=1, need=4, have=1))
    story.step()
    story.step()
    assert view.wait_n == [3, 0]


def test_a_step_that_had_more_than_enough_when_it_asked_lacked_nothing() -> None:
    story, view = at_first_boundary()
    story.write(WaitSamples(step=1, need=4, have=6))
    story.step()
    assert view.wait_n == [0]


def test_a_step_that_reports_no_wait_waited_zero_seconds() -> None:
    story, view = at_first_boundary()
    story.samples(4)
    story.write(BatchFormed(step=1, samples=(0, 1, 2, 3), micro_batches=((0, 1, 2, 3),)))
    story.write(StepDone(step=1, version=0, is_boundary=False, num_samples=4, seconds={}, metrics={}))
    assert (view.wait_s, list(view.train_s)) == ([0.0], [])


def test_waits_last_until_the_boundary_is_decided_and_the_next_cycle_begins_anew() -> None:
    story, view = at_first_boundary()
    story.grant()
    story.step(wait_s=1.5, lacking=3)
    story.step()
    story.publish(1)
    story.samples(2)
    assert view.wait_n == [3, 0]
    story.write(requested(answers=1))
    assert view.wait_n == [3, 0]
    story.step(wait_s=0.5)
    assert (view.wait_s, view.wait_n) == ([0.5], [0])


# --- who holds the devices


def test_the_holder_follows_the_swings() -> None:
    story, view = at_first_boundary()
    holders = [view.swings.holder]
    story.start_lend(give_back_at=5)
    holders.append(view.swings.holder)
    story.write(SwitchDone(swing=1, target="rollout"))
    holders.append(view.swings.holder)
    assert view.swings.lend == Lend(swing=1, reason="verdict", give_back_at=5, max_lent_s=0.0)
    story.start_return()
    holders.append(view.swings.holder)
    assert view.swings.lend is None
    story.write(SwitchDone(swing=2, target="train"))
    holders.append(view.swings.holder)
    assert holders == ["home", "moving", "lent", "moving", "home"]
    assert view.swings.last_lend == 1


def test_a_rejected_lend_leaves_the_devices_home_and_costs_nothing() -> None:
    story, view = at_first_boundary()
    swing = story.start_lend()
    story.pass_seconds(9)
    story.write(SwitchRejected(request=5, swing=swing, reason="busy"))
    assert (view.swings.holder, view.swings.running, view.swings.lend) == ("home", None, None)
    assert not view.swings.activations_s


def test_a_rejected_request_leaves_a_running_swing_alone() -> None:
    story, view = at_first_boundary()
    story.start_lend()
    story.write(SwitchRejected(request=5, swing=0, reason="busy"))
    assert view.swings.holder == "moving"


def test_a_return_cut_off_by_the_end_of_the_run_leaves_the_devices_lent() -> None:
    story, view = at_first_boundary()
    story.lend()
    swing = story.start_return()
    story.write(SwitchRejected(request=0, swing=swing, reason="run_ended"))
    assert view.swings.holder == "lent"


def test_an_amendment_changes_the_numbers_of_its_swing_only() -> None:
    story, view = at_first_boundary()
    swing = story.lend(give_back_at=6)
    story.write(requested(amends=swing + 1, give_back_at=2))
    assert view.swings.lend == Lend(swing, "verdict", 6, 0.0)
    story.write(requested(amends=swing, give_back_at=2, max_lent_s=30.0))
    assert view.swings.lend == Lend(swing, "verdict", 2, 30.0)
    story.write(requested(amends=swing, give_back_at=3))
    assert view.swings.lend == Lend(swing, "verdict", 3, 30.0)


@pytest.mark.parametrize("reason", ["starved", "evaluation"])
def test_no_amendment_lowers_the_number_of_a_lend_that_the_controller_began_by_itself(reason: str) -> None:
    story, view = at_first_boundary()
    swing = story.start_lend(give_back_at=4, reason=reason)
    story.write(requested(amends=swing, give_back_at=0))
    assert view.swings.lend is not None
    assert view.swings.lend.give_back_at == 4
    story.write(requested(amends=swing, give_back_at=7))
    assert view.swings.lend.give_back_at == 7


# --- what swings cost


def test_the_seconds_of_a_swing_are_those_between_its_start_and_its_end() -> None:
    story, view = at_first_boundary()
    story.lend(seconds=3.25)
    story.give_back(seconds=1.5)
    assert (list(view.swings.activations_s), list(view.swings.deactivations_s)) == ([3.25], [1.5])
    assert (view.swings.this_cycle.activation_s, view.swings.this_cycle.deactivation_s) == (3.25, 1.5)


def test_a_swing_that_a_restarted_controller_ended_has_no_cost() -> None:
    story, view = at_first_boundary()
    story.start_lend()
    story.epochs["controller"] = 2
    story.pass_seconds(4)
    story.write(SwitchDone(swing=1, target="rollout"))
    assert view.swings.holder == "lent"
    assert not view.swings.activations_s
    story.give_back(seconds=1.0)
    assert list(view.swings.deactivations_s) == [1.0]


def test_costs_belong_to_the_cycle_in_which_the_swing_ended() -> None:
    story, view = at_first_boundary()
    story.write(requested(answers=0))
    story.lend(seconds=3.0, answers=0)
    story.give_back(seconds=1.0)
    story.cycle()
    story.write(requested(answers=1))
    story.lend(seconds=5.0, answers=1)
    assert (view.swings.this_cycle.activation_s, view.swings.last_cycle.activation_s) == (5.0, 3.0)
    story.give_back(seconds=2.0)
    story.cycle()
    assert (view.swings.this_cycle.deactivation_s, view.swings.last_cycle.deactivation_s) == (2.0, 1.0)


def test_measurements_are_bounded() -> None:
    story, view = at_first_boundary(plan(total_steps=10_000))
    for _ in range(RECENT + 5):
        story.lend()
        story.give_back()
        story.cycle()
        story.grant()
    story.samples(RECENT_SAMPLES)
    assert len(view.swings.activations_s) == len(view.swings.deactivations_s) == len(view.train_s) == RECENT


# --- rates


def test_the_rate_of_ready_samples_is_unknown_until_two_were_timed() -> None:
    story, view = told()
    assert view.ready_per_s == 0.0
    story.samples(1)
    assert view.ready_per_s == 0.0


def test_the_rate_of_ready_samples_is_that_of_the_newest_ones() -> None:
    story, view = told()
    for _ in range(RECENT_SAMPLES + 1):
        story.pass_seconds(0.5)
        story.samples(1)
    assert view.ready_per_s == 2.0


def test_times_of_two_incarnations_are_not_compared() -> None:
    story, view = told()
    story.samples(1)
    story.pass_seconds(100)
    story.epochs["rollouter"] = 2
    story.samples(1)
    story.pass_seconds(2)
    story.samples(1)
    assert view.ready_per_s == 0.5


def test_a_sample_reported_twice_is_timed_once() -> None:
    story, view = told()
    story.samples(2)
    story.pass_seconds(1)
    story.write(ready(1))
    assert view.ready_per_s == 0.0


def test_the_training_time_of_a_step_is_the_mean_of_the_newest() -> None:
    story, view = at_first_boundary()
    assert view.mean_train_s == 0.0
    story.step()
    assert view.mean_train_s == 2.0


def test_own_verdicts_are_taken_without_position_and_time() -> None:
    story, view = at_boundary_one()
    story.pass_seconds(50)
    view.apply(Entry(0, "policy", 0, True, 9, 0, "", requested(answers=1)))
    assert not view.is_open
    assert view.boundaries_decided == 2
    story.lend(seconds=2.0, answers=1)
    assert list(view.swings.activations_s) == [2.0]
    assert story.entries[-1].at == 52 * SECOND
