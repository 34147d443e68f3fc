"""`separate_async` on hand-written logs, rule by rule. R = 16, K = 4, so a cycle has S = 64 samples; 2 hybrid and 2 standalone GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.entry import Entry
from bus.errors import ConfigError
from bus.events import SwitchRequested, Value
from policies.protocol import Policy, Verdict
from policies.registry import create
from policies.separate_async import SeparateAsyncParams, SeparateAsyncRule, num_devices
from policies.view import RunShape, ScheduleView
from tests.policies.logs import Story, plan

SHAPE = RunShape(16, 4, 0.5, only_hybrid=False)
DEVICES = {"trainer": "cuda:0,cuda:1", "replica:h0": "cuda:0", "replica:h1": "cuda:1", "replica:s0": "cuda:2,cuda:3"}


class Seen:
    """The policy on a view that a story is told to."""

    def __init__(self, total_steps: int = 1000, num_prompts: int | None = None, **params: Value) -> None:
        self.policy: Policy = create("separate_async", params)
        self.view = ScheduleView()
        planned = plan(
            required_samples=16,
            trigger_parameter_sync_step=4,
            staleness_threshold=1.0,
            total_steps=total_steps,
            num_prompts=num_prompts,
            hybrid=("h0", "h1"),
            devices=DEVICES,
        )
        self.story = Story(planned, self.take)
        self.story.open_first_boundary()

    def take(self, entry: Entry) -> None:
        decided = self.view.boundaries_decided
        self.view.apply(entry)
        if self.view.boundaries_decided > decided:
            self.policy.decided(self.view)

    def verdict(self) -> Verdict:
        assert self.view.is_open
        return self.policy.verdict(self.view)

    def answer(self) -> Verdict:
        """The boundary is answered as the policy says, whatever happens to the devices then."""
        verdict = self.verdict()
        assert self.view.boundary is not None
        self.story.write(
            SwitchRequested(
                target=verdict.target,
                answers=self.view.boundary.version,
                amends=None,
                give_back_at=verdict.give_back_at,
                max_lent_s=0.0,
                reason="",
                evidence={},
            )
        )
        return verdict

    def cycle(self, wait_s: float = 0.0, lacking: int = 0) -> None:
        self.answer()
        self.story.cycle(wait_s, lacking)


def rule(ratio: float = 0.4, **params: object) -> SeparateAsyncRule:
    return SeparateAsyncRule(SeparateAsyncParams.model_validate(params), ratio)


def after(start: SeparateAsyncRule, *waits_s: float) -> list[float]:
    """Its ratio after each of these cycles."""
    ratios = []
    for seconds in waits_s:
        start = start.after_cycle(SHAPE, (seconds, 0.0), (0, 0))
        ratios.append(round(start.ratio, 9))
    return ratios


# --- the threshold


@pytest.mark.parametrize(
    ("ratio", "threshold"),
    [(0.4, 26), (0.45, 29), (0.3, 19), (0.25, 16), (0.01, 16), (1.0, 64), (0.999, 64)],
)
def test_the_threshold_is_the_rounded_share_of_a_cycle_but_a_batch_at_least_and_a_cycle_at_most(ratio: float, threshold: int) -> None:
    assert rule(ratio).threshold(SHAPE) == threshold


def test_lent_devices_go_back_at_the_threshold() -> None:
    seen = Seen()
    assert (seen.verdict().give_back_at, seen.policy.give_back_at(seen.view)) == (26, 26)


# --- the ratio


@pytest.mark.parametrize(("seconds", "ratio"), [(2.01, 0.45), (2.0, 0.37)])
def test_a_cycle_is_idle_if_its_steps_waited_more_than_two_seconds_in_all(seconds: float, ratio: float) -> None:
    told = rule(release_steps=1).after_cycle(SHAPE, (seconds - 1.5, 0.5, 1.0, 0.0), (0, 0, 0, 0))
    assert told.ratio == pytest.approx(ratio)


def test_after_two_idle_cycles_in_a_row_and_each_further_one_the_ratio_goes_up() -> None:
    assert after(rule(), 3.0, 3.0, 3.0, 3.0) == [0.4, 0.45, 0.5, 0.55]


def test_after_two_calm_cycles_in_a_row_and_each_further_one_the_ratio_goes_down() -> None:
    assert after(rule(), 0.0, 1.0, 2.0) == [0.4, 0.37, 0.34]


def test_a_cycle_of_the_other_kind_starts_the_count_anew() -> None:
    assert after(rule(), 3.0, 0.0, 3.0, 3.0, 0.0, 0.0) == [0.4, 0.4, 0.4, 0.45, 0.45, 0.42]


def test_the_settings_say_after_how_many_cycles_and_by_how_much() -> None:
    assert after(rule(release_steps=3, step_up=0.1, step_down=0.2), 3.0, 3.0, 3.0, 3.0) == [0.4, 0.4, 0.5, 0.6]
    assert after(rule(0.8, release_steps=3, step_down=0.2), 0.0, 0.0, 0.0, 0.0) == [0.8, 0.8, 0.6, 0.4]


def test_the_ratio_stays_between_one_batch_and_a_whole_cycle() -> None:
    assert after(rule(0.97), 3.0, 3.0, 3.0) == [0.97, 1.0, 1.0]
    assert after(rule(0.27), 0.0, 0.0, 0.0) == [0.27, 0.25, 0.25]


def test_a_ratio_that_is_not_adaptive_stays() -> None:
    assert after(rule(adaptive=False), 3.0, 3.0, 3.0, 0.0, 0.0, 0.0) == [0.4] * 6


@given(st.lists(st.floats(0, 100), max_size=80), st.floats(0.25, 1), st.integers(1, 4))
def test_the_ratio_is_within_its_limits_whatever_the_waits(waits_s: list[float], ratio: float, release_steps: int) -> None:
    assert all(0.25 <= found <= 1.0 for found in after(rule(ratio, release_steps=release_steps), *waits_s))


# --- what a lacking sample costs


def test_a_sample_costs_what_all_cycles_waited_over_what_they_lacked() -> None:
    told = rule().after_cycle(SHAPE, (6.0, 2.0), (3, 1)).after_cycle(SHAPE, (8.0, 0.0), (12, 0))
    assert told.sample_s == 1.0


@pytest.mark.parametrize(("wait_s", "wait_n"), [((9.0, 1.0), (0, 0)), ((0.0, 0.0), (5, 0))])
def test_a_cycle_that_had_waits_or_lacking_samples_only_does_not_count(wait_s: tuple[float, ...], wait_n: tuple[int, ...]) -> None:
    assert rule().after_cycle(SHAPE, wait_s, wait_n).sample_s is None
    known = rule().after_cycle(SHAPE, (6.0,), (4,))
    assert known.after_cycle(SHAPE, wait_s, wait_n).sample_s == 1.5


# --- the verdict


def test_it_lends_while_neither_a_sample_nor_a_swing_has_a_cost() -> None:
    seen = Seen()
    verdict = seen.verdict()
    assert (verdict.target, verdict.give_back_at, verdict.reason) == ("rollout", 26, "unknown")
    assert verdict.evidence == {"ratio": 0.4, "threshold": 26.0, "ready": 0.0, "remaining": 26.0, "saved_share": 0.5}


def test_it_lends_until_there_was_a_lend_and_a_return() -> None:
    seen = Seen()
    seen.cycle(wait_s=0.2, lacking=8)
    assert seen.verdict().reason == "unknown"
    seen.answer()
    seen.story.lend(50.0)
    seen.story.cycle(wait_s=0.2, lacking=8)
    assert seen.verdict().reason == "unknown"
    seen.answer()
    seen.story.give_back(1.0)
    seen.story.cycle(wait_s=0.2, lacking=8)
    assert (seen.verdict().reason, seen.verdict().evidence["cost_s"]) == ("cost_over_benefit", 51.0)


def worked_example(ready: int) -> Verdict:
    """The example of the policy's docstring."""
    seen = Seen()
    for lend_s, return_s in ((6.0, 2.0), (10.0, 4.0)):
        seen.answer()
        seen.story.lend(lend_s)
        seen.story.give_back(return_s)
        seen.story.step(12.0, 8)
        seen.story.step()
        seen.story.step()
        seen.story.samples(16 + (ready if lend_s == 10.0 else 0))
        seen.story.step()
        seen.story.publish(seen.story.version + 1)
    return seen.verdict()


def test_it_lends_when_the_hybrid_replicas_save_more_than_the_swings_cost() -> None:
    verdict = worked_example(ready=5)
    assert (verdict.target, verdict.give_back_at, verdict.reason) == ("rollout", 29, "benefit_over_cost")
    expected = {"threshold": 29.0, "ready": 5.0, "remaining": 24.0, "sample_s": 1.5, "saved_share": 0.5, "benefit_s": 18.0, "cost_s": 11.0}
    assert verdict.evidence == {"ratio": pytest.approx(0.45), **expected}


def test_it_does_not_lend_for_what_costs_more_than_it_saves() -> None:
    verdict = worked_example(ready=17)
    assert (verdict.target, verdict.reason, verdict.evidence["benefit_s"]) == ("train", "cost_over_benefit", 9.0)


def test_it_does_not_lend_when_the_threshold_is_reached_already() -> None:
    for ready in (29, 40):
        verdict = worked_example(ready)
        assert (verdict.target, verdict.reason, verdict.evidence["remaining"]) == ("train", "enough_ready", 0.0)


@pytest.mark.parametrize(("window", "cost_s"), [(1, 11.0 + 4.0), (2, 8.0 + 3.0), (3, 27.0 / 3), (4, 27.0 / 3)])
def test_the_cost_is_the_mean_of_the_newest_swings_of_each_direction(window: int, cost_s: float) -> None:
    seen = Seen(cost_window=window)
    for lend_s, return_s in ((4.0, 1.0), (5.0, 2.0), (11.0, 4.0)):
        seen.answer()
        seen.story.lend(lend_s)
        seen.story.give_back(return_s)
        seen.story.cycle()
    assert seen.verdict().evidence["cost_s"] == pytest.approx(cost_s)


def test_the_saved_share_is_that_of_the_hybrid_gpus() -> None:
    planned = plan(standalone=("s0", "s1"), hybrid=("h0", "h1"), devices=DEVICES)
    assert (num_devices(planned, planned.hybrid), num_devices(planned, planned.standalone)) == (2, 3)
    # Replicas that take turns on one device have that one together.
    shared = plan(hybrid=("h0", "h1"), devices={"replica:h0": "cuda:0", "replica:h1": "cuda:0", "replica:s0": "2,3"})
    assert (num_devices(shared, shared.hybrid), num_devices(shared, shared.standalone)) == (1, 2)


@pytest.mark.parametrize(
    ("total_steps", "num_prompts"),
    [(12, None), (9, None), (1000, 192), (1000, 140)],
)
def test_it_does_not_lend_for_the_last_cycle(total_steps: int, num_prompts: int | None) -> None:
    seen = Seen(total_steps, num_prompts)
    verdicts = []
    for _ in range(2):
        verdicts.append(seen.answer())
        seen.story.cycle(3.0, 8)
    verdicts.append(seen.verdict())
    assert [(verdict.target, verdict.reason) for verdict in verdicts] == [
        ("rollout", "unknown"),
        ("rollout", "unknown"),
        ("train", "last_cycle"),
    ]


def test_no_cycle_ends_at_the_start_of_the_run() -> None:
    seen = Seen(release_steps=1)
    seen.answer()
    assert seen.policy.give_back_at(seen.view) == 26
    seen.story.cycle()
    assert seen.answer().evidence["ratio"] == pytest.approx(0.37)


def test_a_running_lend_is_amended_to_the_threshold_of_the_ratio_as_it_is_now() -> None:
    seen = Seen()
    for _ in range(2):
        seen.cycle(wait_s=12.0, lacking=8)
    assert seen.policy.give_back_at(seen.view) == 26
    seen.answer()
    assert seen.policy.give_back_at(seen.view) == 29


def test_asking_changes_nothing() -> None:
    asked, silent = Seen(release_steps=1), Seen(release_steps=1)
    for wait_s in (3.0, 0.0, 5.0, 5.0):
        assert [asked.verdict() for _ in range(3)] == [silent.verdict()] * 3
        for seen in (asked, silent):
            seen.cycle(wait_s, 4 if wait_s else 0)
    assert asked.verdict() == silent.verdict()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("switch_threshold_ratio", 0.0), ("switch_threshold_ratio", 1.1), ("release_steps", 0), ("cost_window", 0), ("cost_window", 17)],
)
def test_a_setting_outside_its_limits_is_refused(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"policy separate_async: {setting} is {value}"):
        create("separate_async", {setting: value})
