"""What policies that were written for verl decide on hand-written logs: their files run unchanged. R = 4, K = 2, so S = 8."""

from __future__ import annotations

import logging

import pytest

from bus.errors import ConfigError
from bus.events import (
    SwitchDone,
    Value,
)
from policies.check import check_decisions
from policies.registry import create
from services.policy.core import PolicyCore
from services.policy.making import make_policy
from services.policy.verl_check import verl_deciders
from tests.policies.logs import Story, plan
from tests.services.policy.verl_files import (
    GOLDEN,
    RATIO_POLICIES,
    TELLING,
    join,
    mine,
    rebalances,
    requests,
    small,
    varied,
)


def test_all_recorded_decisions_pass_through_a_file_written_for_verl() -> None:
    result = check_decisions(GOLDEN, verl_deciders("ratio_policies.py", RATIO_POLICIES))
    assert (result.traces, result.boundaries, result.first) == (40, 995, None)


def test_a_file_may_be_a_subclass_of_verls_own_policies() -> None:
    package = "verl.experimental.fully_async_policy.dynamic_schedule"
    source = (
        f"from {package} import DefaultDynamicSchedulePolicy, StaticFullyAsyncPolicy, register_policy\n"
        f"from {package}.fixed_ratio_policy import FixedRatioDynamicSchedulePolicy\n"
        "register_policy('default')(DefaultDynamicSchedulePolicy)\n"
        "register_policy('fixed_ratio')(FixedRatioDynamicSchedulePolicy)\n"
        "register_policy('static_fully_async')(StaticFullyAsyncPolicy)\n"
    )
    assert check_decisions(GOLDEN, verl_deciders("theirs.py", source)).first is None


@pytest.mark.parametrize("ratio", [0.2, 0.6])
@pytest.mark.parametrize(("ours", "theirs"), [("default", "AdaptiveRatio"), ("fixed_ratio", "FixedRatio"), ("static_fully_async", "Never")])
def test_on_a_log_it_decides_as_the_built_in_policy_that_it_is_written_after(ours: str, theirs: str, ratio: float) -> None:
    told = []
    params: dict[str, Value] = {"deactivate_ratio": ratio}
    for core in (PolicyCore(create(ours, params)), mine(RATIO_POLICIES, params, f"r.py:{theirs}")):
        story = Story(plan())
        join(story, core)
        varied(story)
        told.append([(event.target, event.answers, event.target == "rollout" and event.give_back_at) for event in requests(story)])
    assert told[0] == told[1]
    assert len(told[0]) == 8


def test_verl_calls_in_this_order_and_with_these_durations(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    story = Story(plan())
    join(story, mine(TELLING, name="telling.py:Telling"))
    caplog.clear()
    story.open_first_boundary()
    story.lend(3.0, answers=0)
    story.give_back(1.0)
    story.cycle(2.0, 1)
    story.grant()
    story.cycle()
    assert [record.getMessage().partition("prints: ")[2] for record in caplog.records] == [
        "made 0.5 False",
        "should_activate_after_step 0 False 0.0 0.0",
        "request_rebalance 0 0.0",
        "update_after_step 0 3.0 0.0",
        "should_deactivate 0 True 0.0 0.0",
        "deactivate_wait_samples",
        "should_deactivate 0 False 0.0 0.0",
        "should_activate_after_step 1 False 0.0 1.0",
        "update_after_step 1 0.0 1.0",
        "should_deactivate 1 False 0.0 0.0",
        "should_deactivate 1 False 0.0 0.0",
        "should_activate_after_step 2 False 0.0 0.0",
    ]


def test_the_context_has_all_of_verls_fields_and_is_one_object() -> None:
    fields = (
        "required_samples, trigger_parameter_sync_step, step_required_samples, total_generated_samples, expected_samples, buffer_samples, "
        "step_wait_times, step_wait_samples, only_hybrid, last_activate_duration_s, last_deactivate_duration_s"
    )
    tests = "\n".join(
        [
            "if global_steps == 0:",
            "    self.first = ctx",
            "else:",
            f"    seen = [getattr(ctx, name) for name in '{fields}'.split(', ')]",
            "    assert seen == [4, 2, 8, 10, 8, 4.0, [6.0, 0.0], [3, 0], False, 0.0, 0.0], seen",
            "    assert ctx is self.first and type(ctx) is DynamicScheduleContext",
            "return True",
        ]
    )
    story = Story(plan())
    join(story, mine(small(should_activate_after_step=tests)))
    story.open_first_boundary()
    story.grant()
    story.step(6.0, 3)
    story.samples(6)
    story.step()
    assert [event.answers for event in requests(story)] == [0, 1]


def test_it_says_with_the_verdict_for_how_many_samples_it_will_want_the_devices_back() -> None:
    source = small(update_after_step="self.wants = 6 if global_steps else 3", deactivate_wait_samples="return self.wants")
    story = Story(plan())
    join(story, mine(source))
    story.open_first_boundary()
    story.lend(3.0, give_back_at=3, answers=0)
    story.give_back()
    story.cycle()
    assert [(event.answers, event.give_back_at) for event in requests(story)] == [(0, 3), (1, 6)]


def test_it_amends_the_lend_when_what_the_lend_took_changes_the_number() -> None:
    source = small(update_after_step="self.wants = 2 + int(ctx.last_activate_duration_s)", deactivate_wait_samples="return self.wants")
    story = Story(plan())
    join(story, mine(source))
    story.open_first_boundary()
    swing = story.lend(3.0, give_back_at=2, answers=0)
    story.samples(2)
    assert [(event.answers, event.amends, event.give_back_at) for event in requests(story)] == [(0, None, 2), (None, swing, 5)]


def test_one_that_does_not_want_the_devices_back_keeps_them_until_the_batch_is_there() -> None:
    story = Story(plan())
    join(story, mine(small(should_deactivate="return False")))
    story.open_first_boundary()
    assert requests(story)[0].give_back_at == 4


def test_lends_that_the_controller_makes_by_itself_are_not_told() -> None:
    story = Story(plan())
    core = join(story, mine(small(should_activate_after_step="return False", request_rebalance="raise RuntimeError")))
    story.open_first_boundary()
    story.grant()
    swing = story.start_lend(give_back_at=7, reason="starved")
    story.write(SwitchDone(swing=swing, target="rollout", replicas=("h0",)))
    story.samples(2)
    assert [event.amends for event in requests(story)] == [None]
    assert core.policy.give_back_at(core.view) == 5


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ("ray.get(self._rollouter.rebalance_requests.remote())", 1),
        ("result = ray.get([self._rollouter.rebalance_requests.remote()])[0]\nresult.get('server_loads', {}).get('s0')", 1),
        ("if not hasattr(self, '_rollouter') or self._rollouter is None or ctx.expected_samples < 100:\n    return", 0),
        ("print('spread them')", 1),
        ("return True", 1),
        ("return False", 0),
        ("pass", 0),
        ("'''Nothing.'''", 0),
        (None, 0),
    ],
)
def test_a_rebalance_that_it_asks_its_rollouter_for_is_a_recorded_request(body: str | None, asks: int) -> None:
    story = Story(plan())
    join(story, mine(small(**{} if body is None else {"request_rebalance": body})))
    story.open_first_boundary()
    story.lend(answers=0)
    story.samples(2)
    assert rebalances(story) == asks


def test_with_rebalancing_switched_off_it_is_not_asked() -> None:
    story = Story(plan(enable_rebalance=False))
    join(story, mine(small(request_rebalance="raise RuntimeError")))
    story.open_first_boundary()
    story.lend(answers=0)
    assert rebalances(story) == 0


# --- its settings


def test_its_settings_are_the_arguments_of_its_constructor() -> None:
    assert make_policy("r.py:FixedRatio", {}, RATIO_POLICIES).params == {"deactivate_ratio": 0.3, "only_hybrid": None}
    given = make_policy("r.py:FixedRatio", {"deactivate_ratio": 0.9, "only_hybrid": True}, RATIO_POLICIES)
    assert given.params == {"deactivate_ratio": 0.9, "only_hybrid": True}
    assert make_policy(given.name, given.params, RATIO_POLICIES).params == given.params


def test_a_class_is_found_by_the_name_it_registered_too() -> None:
    assert make_policy("r.py:static_fully_async", {}, RATIO_POLICIES).name == "r.py:static_fully_async"


def test_what_verl_passes_to_every_constructor_is_passed_where_there_is_no_default() -> None:
    init = "    def __init__(self, deactivate_ratio, only_hybrid): self.seen = (deactivate_ratio, only_hybrid)"
    assert make_policy("mine.py:Mine", {}, small(more=init)).params == {"deactivate_ratio": 0.3, "only_hybrid": None}


@pytest.mark.parametrize(("standalone", "number"), [((), 8), (("s0",), 4)])
def test_whether_there_are_hybrids_only_is_as_the_replicas_of_the_run(standalone: tuple[str, ...], number: int) -> None:
    story = Story(plan(standalone=standalone))
    join(story, mine(RATIO_POLICIES, {"deactivate_ratio": 0.5}, "r.py:FixedRatio"))
    story.open_first_boundary()
    assert requests(story)[0].give_back_at == number


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"deactivate_ration": 0.4}, "policy r.py:FixedRatio has no setting 'deactivate_ration': did you mean 'deactivate_ratio'"),
        ({"deactivate_ratio": 0.4, "x": 1}, "has no setting 'x'"),
    ],
)
def test_an_unknown_setting_names_the_nearest(params: dict[str, Value], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_policy("r.py:FixedRatio", params, RATIO_POLICIES)
