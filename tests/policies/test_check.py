"""The recorded decisions agree with the rules, and the check says so when they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.errors import ConfigError
from policies.check import CheckResult, check_decisions

GOLDEN = Path(__file__).parent.parent / "golden" / "policy_decisions.json"


def mutated(change: Callable[[dict[str, dict[str, object]]], None], trace: int, step: int) -> CheckResult:
    data = json.loads(GOLDEN.read_text())
    change(data["traces"][trace]["steps"][step])
    return check_decisions(json.dumps(data))


def small(**changes: object) -> str:
    trace: dict[str, object] = {
        "policy": "default",
        "params": {},
        "run": {"required_samples": 4, "trigger_parameter_sync_step": 1, "staleness_threshold": 0.5},
        "steps": [],
    }
    return json.dumps({"traces": [trace | changes]})


def test_all_recorded_boundaries_agree() -> None:
    assert check_decisions(GOLDEN.read_bytes()) == CheckResult(traces=40, boundaries=995, traces_differing=0, first=None)


def test_a_changed_answer_is_named_with_its_place_and_both_values() -> None:
    def flip(step: dict[str, dict[str, object]]) -> None:
        step["expect"]["activate"] = not step["expect"]["activate"]

    result = mutated(flip, trace=3, step=5)
    assert str(result.first) == "trace 3 (fixed_ratio), version 6: expect.activate should be True, is False"
    assert result.traces_differing == 1
    assert result.boundaries < 995


def test_a_changed_ratio_is_found() -> None:
    def nudge(step: dict[str, dict[str, object]]) -> None:
        step["expect"]["deactivate_ratio_after"] = 0.123

    first = mutated(nudge, trace=0, step=2).first
    assert first is not None
    assert (first.trace, first.version, first.what, first.expected) == (0, 3, "expect.deactivate_ratio_after", 0.123)


def test_a_changed_number_at_which_devices_go_back_is_found() -> None:
    def nudge(step: dict[str, dict[str, object]]) -> None:
        step["step_start"]["wait_samples"] = 75

    first = mutated(nudge, trace=0, step=1).first
    assert first is not None
    assert (first.what, first.expected, first.got) == ("step_start.wait_samples", 75, 74)


def test_the_first_of_several_differences_is_reported_and_all_traces_are_counted() -> None:
    data = json.loads(GOLDEN.read_text())
    for trace in (7, 2, 30):
        step = data["traces"][trace]["steps"][0]
        step["boundary"]["expected_samples"] += 1
    result = check_decisions(json.dumps(data))
    assert result.traces_differing == 3
    assert result.first is not None
    assert result.first.trace == 2


def test_a_file_without_boundaries_agrees() -> None:
    assert check_decisions(small()) == CheckResult(traces=1, boundaries=0, traces_differing=0, first=None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no file of recorded decisions"),
        ("{}", "traces"),
        (small(run={}), "traces.0.run.required_samples"),
        (small(policy="defualt"), "did you mean 'default'"),
        (small(params={"ratio": 0.5}), "did you mean 'deactivate_ratio'"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_decisions(text)
