"""Shadows against the active policy: by hand-written logs, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from bus.books import Books
from bus.events import (
    Event,
    PolicyDetached,
    PolicyRefused,
    PolicyRequested,
    ReplicaAdded,
    RoutesOpened,
    SampleStarted,
    ServiceStarted,
    ShadowVerdict,
    SwitchRequested,
)
from services.monitor.cycle_model import Answer, Flow, Outset, Pace, Stock, cycle_seconds, saved_seconds
from services.monitor.pace import PaceFold
from services.monitor.policy_history import Chosen, PolicyHistory
from services.monitor.policy_tables import rows_of
from services.monitor.shadows import Comparison
from services.monitor.summary import Summary
from tests.services.monitor.logs import Story, plan, ready, step_done
from tests.services.monitor.policy_runs import Run, attached, first_cycle, verdict

PACE = Pace(alone=Flow(1 / 8, 4), together=Flow(1 / 8, 12), lend_s=3.0, back_s=1.0, train_s=2.0)
"""0.5 samples a second while the hybrids sleep, 1.5 while they are open, as long as there is enough to serve."""
OUTSET = Outset(ready=2, required_samples=4, steps=2, following_steps=2, limit=30, left=1000, max_lent_s=600.0)
KEEP, LEND = Answer(False, 0), Answer(True, 6)


# --- the formula ---------------------------------------------------------------------------------------------------------------


def test_the_worked_example_of_the_formula() -> None:
    assert cycle_seconds(KEEP, OUTSET, PACE) == (14.0, 16.0)
    assert cycle_seconds(LEND, OUTSET, PACE) == pytest.approx((3 + 2.5 / 1.5 + 1 + 2 + 1 + 2, 16.0))
    assert saved_seconds(KEEP, LEND, OUTSET, PACE) == pytest.approx(10 / 3)
    assert saved_seconds(LEND, KEEP, OUTSET, PACE) == pytest.approx(-10 / 3)


def test_samples_that_are_left_over_count_for_what_they_save_in_the_next_cycle() -> None:
    """Back at 12: 8.5 / 1.5 s of lending, 12.5 ready at home; of them 6.5 are left, so the next cycle's first step needs not wait."""
    first, following = cycle_seconds(Answer(True, 12), OUTSET, PACE)
    assert first == pytest.approx(3 + 8.5 / 1.5 + 1 + 2 + 2)
    # 6.5 ready: train 2 (3.5 ready), wait 1, train 2; without the lend 6 + 2 + 6 + 2.
    assert following == pytest.approx(2 + 1 + 2)


def test_a_lend_when_all_is_ready_costs_its_swings() -> None:
    """30 of 30 ready: nothing more can come, so the devices go there and back."""
    full = replace(OUTSET, ready=30)
    assert saved_seconds(KEEP, Answer(True, 4), full, PACE) == pytest.approx(-4.0)
    assert saved_seconds(KEEP, Answer(True, 100), full, PACE) == pytest.approx(-4.0)


def test_a_lend_ends_at_its_longest_time() -> None:
    """1 s of lending: 3.5 + 1.5 = 5 ready, 5.5 when the devices are home; then train (2.5), wait 3, train."""
    assert cycle_seconds(Answer(True, 12, max_lent_s=1.0), OUTSET, PACE)[0] == pytest.approx(3 + 1 + 1 + 2 + 3 + 2)


def test_fewer_to_come_than_are_served_come_more_slowly_and_the_last_one_by_itself() -> None:
    """The last cycle: 2 ready, 6 to come: the first two of them at 0.5 a second, the rest like e^(-t/8), the last in 8 s."""
    last = replace(OUTSET, steps=1, following_steps=0, required_samples=8, left=8)
    first, following = cycle_seconds(KEEP, last, PACE)
    assert first == pytest.approx(4 + 8 * log(4) + 8 + 2)
    assert following == 0.0


@pytest.mark.parametrize("to_come", [0.4, 1.0, 3.0, 4.0, 20.0])
@pytest.mark.parametrize("made", [0.0, 0.2, 1.0, 2.5, 19.5])
def test_what_comes_in_the_seconds_that_it_takes_is_what_was_to_come(to_come: float, made: float) -> None:
    """The two ways to ask the same flow agree: seconds until one more is ready, and what becomes ready in so many seconds."""
    flow = Flow(1 / 8, 4)
    stock = Stock(0.0, to_come)
    seconds = stock.seconds_until(made, flow)
    stock.grow(seconds, flow)
    assert stock.ready == pytest.approx(min(made, to_come))
    assert stock.to_come == pytest.approx(to_come - min(made, to_come), abs=1e-9)


def test_answers_are_the_same_when_they_lead_to_the_same() -> None:
    assert KEEP.same_as(Answer(False, 99))
    assert not KEEP.same_as(LEND)
    assert not LEND.same_as(Answer(True, 7))


# --- the fold ------------------------------------------------------------------------------------------------------------------


def only(summary: Summary) -> Comparison:
    (comparison,) = summary.shadows.all.values()
    return comparison


def test_a_shadow_that_answers_the_same_agrees_and_saves_nothing() -> None:
    comparison = only(first_cycle(Run(), verdict(ShadowVerdict, 0, True)).summary())
    assert (comparison.agree, comparison.differ, comparison.saved_or_unknown_s) == (1, 0, 0.0)
    assert (comparison.label, str(comparison.shadow), str(comparison.against)) == ("deep", "fixed_ratio", "default")


def test_a_shadow_that_would_not_have_lent_is_estimated_when_the_cycle_has_ended() -> None:
    """r = 1/2, r' = 2, a = 1, d = 0.5, t = 1; R = K = 2, L = 6, none ready.

    lend, back at 4: 1 s (0.5), 3.5/2 s (4), 0.5 s (4.25), train 1 (2.25 + .5), train 1 (.75 + .5 = 1.25) = 5.25 s; then wait 1.5, train 1
    (0.5), wait 3, train 1 = 6.5 s                                                                                        11.75 s in all
    keep: wait 4, train 1 (0.5), wait 3, train 1 (0.5) = 9 s; then wait 3, train 1, wait 3, train 1 = 8 s                  17 s in all
    """
    run = Run().answers(None, verdict(ShadowVerdict, 0, False))
    comparison = only(first_cycle(run).summary())
    assert (comparison.agree, comparison.differ, comparison.keep_instead, comparison.lend_instead) == (0, 1, 1, 0)
    (difference,) = comparison.newest
    lend = 1 + 3.5 / 2 + 0.5 + 1 + 1
    first_wait = (2 - (4.25 + 0.5 - 2 + 0.5 - 2)) / 0.5
    assert difference.saved_s == pytest.approx((lend + first_wait + 1 + 3 + 1) - 17.0)
    assert (difference.boundary, str(difference.active), str(difference.shadow)) == (0, "lend, back at 4", "keep")
    assert comparison.saved_or_unknown_s == difference.saved_s


def test_before_the_cycle_has_ended_nothing_is_said_of_seconds() -> None:
    run = Run().answers(verdict(SwitchRequested, 0, True), verdict(ShadowVerdict, 0, False))
    comparison = only(run.make(1, 2.0).summary())
    assert (comparison.differ, comparison.estimated, comparison.saved_or_unknown_s) == (1, 0, None)
    assert comparison.newest[0].unknown == "the cycle has not ended"


def test_without_a_lend_it_is_unknown_what_one_would_have_given() -> None:
    run = Run().answers(verdict(SwitchRequested, 0, False), verdict(ShadowVerdict, 0, True))
    comparison = only(run.make(4, 8.0).grant().train(0, 1).train(2, 3).summary())
    assert (comparison.differ, comparison.lend_instead, comparison.estimated, comparison.saved_or_unknown_s) == (1, 1, 0, None)
    assert comparison.newest[0].unknown == "no lend was measured"


def test_a_verdict_that_comes_cycles_later_is_compared_with_the_numbers_of_its_own_cycle() -> None:
    early = only(first_cycle(Run().answers(None, verdict(ShadowVerdict, 0, False))).summary())
    late = first_cycle(Run()).answers(verdict(SwitchRequested, 1, False)).grant().make(4, 40.0).train(4, 5).train(6, 7)
    late.answers(None, verdict(ShadowVerdict, 0, False))
    assert only(late.summary()).newest[0].saved_s == early.newest[0].saved_s


def test_a_boundary_that_the_active_policy_did_not_answer_is_not_compared() -> None:
    run = Run().grant().answers(verdict(SwitchRequested, 0, True), verdict(ShadowVerdict, 0, False))
    assert run.summary().shadows.all == {}


def test_a_shadow_says_one_thing_about_a_boundary() -> None:
    run = Run().answers(verdict(SwitchRequested, 0, True), verdict(ShadowVerdict, 0, False), verdict(ShadowVerdict, 0, True))
    comparison = only(run.summary())
    assert (comparison.agree, comparison.differ) == (0, 1)


def test_each_active_policy_has_a_comparison_of_its_own() -> None:
    run = first_cycle(Run(), verdict(ShadowVerdict, 0, True)).say("policy", 0.0, attached("static_fully_async", request=9))
    run.answers(verdict(SwitchRequested, 1, False), verdict(ShadowVerdict, 1, True))
    against = {str(comparison.against): comparison for comparison in run.summary().shadows.all.values()}
    assert (against["default"].agree, against["default"].differ) == (1, 0)
    assert (against["static_fully_async"].agree, against["static_fully_async"].differ) == (0, 1)


def test_the_models_error_is_that_of_cycles_in_which_nothing_else_had_a_say() -> None:
    """Boundary 1 has 1 sample ready; it is kept, 3 samples come in 6 s, and two steps take 1 s each: 8 s.

    The model: wait 2 s, train 1 (0.5 ready), wait 3, train 1 = 7 s."""
    run = first_cycle(Run()).answers(verdict(SwitchRequested, 1, False)).grant().make(3, 6.0).train(4, 5).train(6, 7)
    summary = run.summary()
    # Boundary 0 was opened by the controller's clock, so its cycle has no seconds.
    assert list(summary.shadows.model_errors_s) == pytest.approx([-1.0])
    assert summary.as_dict()["shadow_model_error_seconds"] == pytest.approx(1.0)


def test_the_summary_has_who_decided_and_what_shadows_would_have_done() -> None:
    run = Run().answers(None, verdict(ShadowVerdict, 0, False))
    numbers = first_cycle(run).summary().as_dict()
    (comparison,) = rows_of(numbers, "shadow_comparisons")
    assert (comparison["label"], comparison["is_current"], comparison["differ"], comparison["estimated"]) == ("deep", True, 1, 1)
    (policy,) = rows_of(numbers, "policies")
    assert (policy["name"], policy["because"], policy["first_boundary"], policy["until"]) == ("default", "plan", 0, None)
    (shadow,) = rows_of(numbers, "shadows")
    assert (shadow["label"], shadow["name"], shadow["ended"]) == ("deep", "fixed_ratio", "")


# --- who decided ---------------------------------------------------------------------------------------------------------------


def history_of(*events: tuple[str, Event]) -> PolicyHistory:
    story = Story()
    for source, event in events:
        story.say(source, 0.0, event)
    history = PolicyHistory()
    for entry in story.entries:
        history.apply(entry, next_boundary=entry.position)
    return history


def asked(action: str, name: str = "", label: str = "") -> PolicyRequested:
    return PolicyRequested.model_validate({"action": action, "name": name, "label": label})


def test_a_policy_that_attaches_again_for_the_same_request_was_restarted_and_not_swapped() -> None:
    history = history_of(("policy", attached()), ("policy", attached()), ("operator", asked("swap", "fixed_ratio")),
                         ("policy", attached("fixed_ratio", request=4)), ("policy", attached("fixed_ratio", request=4)))  # fmt: skip
    assert [(str(stretch.chosen), stretch.because, stretch.restarts, stretch.position, stretch.until) for stretch in history.stretches] == [
        ("default", "plan", 1, 2, 5),
        ("fixed_ratio", "swap", 1, 5, None),
    ]
    assert history.pending == {}


def test_a_promoted_shadow_is_a_shadow_no_more() -> None:
    history = history_of(
        ("policy", attached()),
        ("policy:deep", attached("fixed_ratio", "shadow", label="deep", deactivate_ratio=0.6)),
        ("operator", asked("promote", "fixed_ratio", "deep")),
        ("policy", attached("fixed_ratio", request=4, deactivate_ratio=0.6)),
        ("policy:deep", PolicyDetached(name="fixed_ratio", reason="promoted")),
    )
    assert history.shadows == {}
    (shadow,) = history.past_shadows
    assert (shadow.label, shadow.until, shadow.ended) == ("deep", 5, "promoted")
    assert history.active is not None
    assert (str(history.active.chosen), history.active.because) == ("fixed_ratio (deactivate_ratio 0.6)", "promote")


def test_a_shadow_that_ends_and_one_that_takes_its_label_are_two() -> None:
    history = history_of(
        ("policy:a", attached("fixed_ratio", "shadow", 1, "a")),
        ("policy:a", PolicyDetached(name="fixed_ratio", reason="asked to")),
        ("policy:a", attached("default", "shadow", 9, "a")),
        ("policy:a", attached("default", "shadow", 9, "a")),
        ("policy:a", attached("static_fully_async", "shadow", 12, "a")),
    )
    assert [(str(shadow.chosen), shadow.ended, shadow.restarts) for shadow in history.past_shadows] == [
        ("fixed_ratio", "asked to", 0),
        ("default", "another one took its label", 1),
    ]
    assert [str(shadow.chosen) for shadow in history.shadows.values()] == ["static_fully_async"]


def test_a_refusal_names_what_was_asked_for_and_the_last_line_of_why() -> None:
    history = history_of(
        ("operator", asked("swap", "my/own.py:Wild")),
        ("supervisor", PolicyRefused(request=2, name="my/own.py:Wild", stage="answer", detail="Traceback\n  x\nZeroDivisionError: oh")),
    )
    (refusal,) = history.refusals
    assert str(refusal) == "swap of Wild was refused at answer: ZeroDivisionError: oh"
    assert history.pending == {}


def test_policies_differ_by_their_text_too() -> None:
    assert Chosen.of("a.py:A", {}, "one") != Chosen.of("a.py:A", {}, "two")
    assert Chosen.of("default", {"b": 1, "a": None}, "") == Chosen.of("default", {"a": None, "b": 1}, "")
    assert str(Chosen.of("default", {"b": 0.25, "a": None, "c": True}, "")) == "default (b 0.25, c True)"


def test_all_of_it_is_bounded() -> None:
    history = PolicyHistory()
    story = Story()
    for number in range(600):
        story.say("operator", 0.0, asked("swap", "default"))
        story.say("policy", 0.0, attached("default", request=number + 10))
    for entry in story.entries:
        history.apply(entry, 0)
    assert (len(history.stretches), history.num_stretches) == (256, 600)
    assert len(history.pending) <= 256


def test_an_old_recording_whose_shadow_has_no_label_is_called_by_its_source() -> None:
    history = history_of(("policy:fixed_ratio", attached("fixed_ratio", "shadow")))
    assert history.shadows["policy:fixed_ratio"].label == "fixed_ratio"


def pace_of(run: Run) -> PaceFold:
    fold, books = PaceFold(), Books()
    for entry in run.entries:
        books.apply(entry.event)
        fold.apply(entry, books)
    return fold


def test_a_rollouter_that_starts_anew_begins_a_new_clock() -> None:
    """Its clock may stand anywhere: the time in between counts for nothing. 1 sample in 2 s before, 1 in 4 s after."""
    run = Run().make(1, 2.0)
    run.rollouter(run.now, SampleStarted(sample=50, version=0))
    run.now -= 1000.0
    run.rollouter(run.now, ServiceStarted(code=""))
    fold = pace_of(run.make(1, 4.0))
    assert fold.alone.speed == pytest.approx(2 / 6)


def test_time_in_which_nothing_is_in_flight_says_nothing_of_the_pace() -> None:
    run = Run().make(1, 2.0)
    run.now += 500.0
    fold = pace_of(run.make(1, 2.0))
    assert (fold.alone.speed, fold.together.speed) == (0.5, 0.0)


def test_a_sample_was_made_over_all_the_time_in_which_it_was_in_flight() -> None:
    """Two slots alone, six together, two answers a sample: 1 and 3 samples at a time.

    Samples 0 and 1 are started; 2 s alone (one of the two is served); then open for 4 s; both are ready: each 1/3 alone and 2/3 together.
    """
    run = Run(plan(rollout_n=2))
    for name, slots in (("s0", 2), ("h0", 4)):
        run.replica(name, ReplicaAdded(replica=name, role="standalone" if name == "s0" else "hybrid", slots=slots, seconds=0.0))
    run.rollouter(10.0, SampleStarted(sample=0, version=0), SampleStarted(sample=1, version=0))
    run.rollouter(12.0, RoutesOpened(swing=1, replicas=("h0",))).rollouter(16.0, ready(0), ready(1))
    fold = pace_of(run)
    assert (fold.alone.served, fold.together.served) == (1.0, 3.0)
    assert fold.alone.speed == pytest.approx((2 / 3) / (1 * 2.0))
    assert fold.together.speed == pytest.approx((4 / 3) / (2 * 4.0))


def test_events_of_samples_and_steps_change_no_history() -> None:
    assert history_of(("rollouter", ready(0)), ("trainer", step_done(1))) == PolicyHistory()
