"""The conformance kit: what we ship passes it, and each check can fail, naming the line and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from policies.registry import POLICIES
from replay.invariants import Invariants
from services.policy.conformance.checks import (
    Check,
    answers_in_time,
    goes_on_after_a_restart,
    looks_at_nothing_else,
    remembers_a_bounded_amount,
    run_checks,
    says_the_same,
    says_the_same_everywhere,
    survives_snapshots,
)
from services.policy.conformance.checks import changes_nothing as answering_changes_nothing
from services.policy.conformance.finding import Finding, without_repetition
from services.policy.conformance.kit import try_policy
from services.policy.conformance.scripts import LONG, SCRIPTS, Script
from services.policy.conformance.trial import Trial, try_scripts
from services.policy.conformance.tried import Tried

HEAD = "from policies.base import PolicyBase, keep, lend\n\nclass Mine(PolicyBase):\n    def __init__(self) -> None:\n"
VERDICT = "    def verdict(self, view):\n"
FIRST, SECOND = SCRIPTS[:2]


def mine(init: str, verdict: str, more: str = "", before: str = "") -> Tried:
    """A policy of a user: bodies of its methods, in lines with four blanks less than in the file."""
    body = HEAD + _indented(init) + VERDICT + _indented(verdict) + more
    return Tried("mine.py:Mine", {}, before + body)


def _indented(lines: str) -> str:
    return "".join(f"        {line}\n" for line in lines.splitlines())


def run_of(tried: Tried, scripts: Sequence[Script] = (FIRST, SECOND)) -> tuple[list[Finding], Trial]:
    trial = Trial()
    findings = [finding for _, finding in try_scripts(tried, trial, scripts) if finding is not None]
    return findings, trial


def failed(check: Check, tried: Tried, scripts: Sequence[Script] = (FIRST, SECOND)) -> str:
    """What the check says of a policy that answers every boundary soundly; all on one line."""
    findings, trial = run_of(tried, scripts)
    assert [finding for finding in findings if not finding.passed] == []
    finding = check(tried, trial)
    assert not finding.passed
    return " ".join(" ".join(finding.lines()).split())


@pytest.mark.parametrize("name", list(POLICIES))
def test_what_we_ship_conforms(name: str) -> None:
    tried = Tried(name, {})
    findings, trial = run_of(tried, (*SCRIPTS, LONG))
    findings += [finding for _, finding in run_checks(tried, trial) if finding is not None]
    assert [finding.lines() for finding in findings if not finding.passed and finding.check != "answers in time"] == []
    assert len(findings) == len(SCRIPTS) + 1 + 7


def test_the_runs_bring_what_a_policy_may_meet() -> None:
    """Else a check that passes says nothing: lends and none, both kinds of swings, late answers, failures, the end of the data."""
    findings, trial = run_of(Tried("fixed_ratio", {"deactivate_ratio": 1.0}), SCRIPTS)
    assert all(finding.passed for finding in findings)
    kinds = {entry.event.kind for played in trial.played for entry in played.entries}
    assert kinds >= {"SwitchRejected", "DeadlineMissed", "ReplicaLost", "SampleDropped", "PromptsExhausted", "SettingChanged", "RunEnded"}
    amended = [text for trace in trial.traces().values() for text in trace if "in mid-cycle" in text]
    assert len(amended) == 1, "the policy that takes over amends the lend"


def test_the_runs_keep_the_rules_of_real_ones() -> None:
    """Else a policy would be tried on what never comes."""
    for name in ("fixed_ratio", "predictive"):
        _, trial = run_of(Tried(name, {}), SCRIPTS)
        for played in trial.played:
            invariants = Invariants()
            assert [broken for entry in played.entries for broken in invariants.apply(entry)] == [], played.name


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("return keep('x', a=1 / view.mean_train_s)", 'ZeroDivisionError.* at boundary 0 .*mine.py", line 7, in verdict'),
        (
            "return lend(len(view.books.ready) + 99, 'x')",
            r"give_back_at of at most 12.*give_back_at 99 at boundary 0; .* mine.py, line 6",
        ),
        ("return lend(2.5, 'x')", "give_back_at as a whole number.*answered give_back_at 2.5 at boundary 0"),
        ("return lend(-1, 'x')", "0 or more .*happened: verdict answered give_back_at -1"),
        ("return keep('x', a=float('nan'))", "evidence of finite numbers.* happened: verdict answered evidence a=nan"),
        ("return keep('')", "expected: a reason, in a word"),
        ("return lend(10**30, 'x')", "below 2.*happened: verdict answered give_back_at 10000"),
        ("return keep('r' * 300_000)", "at most 1000 characters happened: verdict answered a reason of 300000 characters"),
        ("return 'lend'", r"a Verdict, made by .* happened: verdict answered 'lend' at"),
        ("view.books.version", r"a Verdict, made by .*answered None at .*what to do: a method without a `return` on some way"),
    ],
)
def test_an_answer_that_is_none_is_told_with_its_boundary_and_line(verdict: str, said: str) -> None:
    findings, _ = run_of(mine("pass", verdict), (FIRST,))
    assert not findings[0].passed
    text = " ".join(" ".join(findings[0].lines()).split())
    assert re.search(said, text), text


def test_a_mistake_that_shows_in_many_runs_is_told_whole_once() -> None:
    findings, _ = run_of(mine("pass", "return keep('x', a=1 / view.mean_train_s)"), SCRIPTS[:3])
    first, *others = without_repetition(findings)
    assert "mine.py" in first.where
    assert [(each.passed, each.where, each.advice) for each in others] == [(False, "", "as above")] * 2


def test_memory_that_instances_share_is_found() -> None:
    tried = mine("pass", "return keep('x', n=len(Mine.seen))", "    seen = []\n    def decided(self, view):\n        Mine.seen.append(1)\n")
    said = failed(says_the_same, tried)
    assert "expected: “do not lend, back at 0, x (n 0)”, as before" in said
    assert "what lies in the class or in the module is shared" in said


def test_an_answer_that_changes_the_policy_is_found_with_the_line_that_does() -> None:
    said = failed(answering_changes_nothing, mine("self.asked = 0", "self.asked += 1\nreturn keep('x')"))
    assert "self.asked was 0, and is 1 after it was asked, at boundary 0" in said
    assert "mine.py, line 7: self.asked += 1" in said


def test_an_answer_that_changes_the_view_is_found() -> None:
    said = failed(answering_changes_nothing, mine("pass", "view.wait_s.append(0.0)\nreturn keep('x')"))
    assert "the view has changed after it was asked" in said
    assert "mine.py, line 6: def verdict(self, view):" in said


def test_memory_that_does_not_follow_from_the_log_is_found() -> None:
    said = failed(goes_on_after_a_restart, mine("self.asked = 0", "self.asked += 1\nreturn keep('x', asked=self.asked)"))
    assert "a process that was started there answered “do not lend, back at 0, x (asked 1)”" in said


def test_state_that_cannot_be_written_down_is_found_with_the_line_that_sets_it() -> None:
    more = "    def decided(self, view):\n        self.seen = self.seen | {view.boundary.version}\n"
    said = failed(survives_snapshots, mine("self.seen = {0}", "return keep('x')", more))
    assert "self.seen is a set: a snapshot can hold plain data only, at boundary 0" in said
    assert "mine.py, line 9: self.seen = self.seen | {view.boundary.version}" in said


def test_a_clock_that_comes_in_by_the_back_door_is_found_with_the_line_that_looks() -> None:
    tried = mine("pass", "dataclasses.sys.modules['time'].time()\nreturn keep('x')", before="import dataclasses\n")
    said = failed(looks_at_nothing_else, tried)
    assert "time.time was called by mine.py:8 (Mine.verdict)" in said


def test_memory_without_a_bound_is_found() -> None:
    more = "    def decided(self, view):\n        self.waits.append(sum(view.wait_s))\n"
    said = failed(remembers_a_bounded_amount, mine("self.waits = []", "return keep('x')", more), (LONG,))
    assert "self.waits is the largest" in said
    assert "collections.deque(maxlen=16)" in said


def test_a_boundary_that_takes_much_too_long_is_found() -> None:
    slow = "if view.boundary.version == 5:\n    sum(range(12_000_000))\nreturn keep('x')"
    said = failed(answers_in_time, mine("pass", slow), (FIRST,))
    assert "over 100 ms it fails" in said


def test_the_order_of_a_set_is_found_for_other_processes_have_another() -> None:
    tried = mine("pass", "return keep(''.join({'a', 'b', 'c', 'd', 'e', 'f', 'g'}))")
    findings = try_policy(tried.name, tried.params, tried.source)
    (finding,) = [finding for finding in findings if not finding.passed]
    assert finding.check == "says the same in every process"
    assert "go through a list or a dict, not through a set" in finding.advice


def test_a_loop_without_an_end_is_found_with_its_line() -> None:
    tried = mine("pass", "while view.is_open:\n    pass\nreturn keep('x')")
    *_, finding = try_policy(tried.name, tried.params, tried.source, limit_s=1.0)
    assert not finding.passed
    assert finding.happened == "it hangs, or takes much too long"
    assert "mine.py, line 7, in verdict" in finding.where or "mine.py, line 8, in verdict" in finding.where


@pytest.mark.parametrize("state", ["{'a', 'b'}", "lambda: 1"])
def test_what_cannot_be_looked_at_is_neither_passed_nor_failed_and_told_with_its_reason(state: str) -> None:
    tried, trial = mine(f"self.seen = {state}", "return keep('x')"), Trial()
    assert all(finding.passed for _, finding in try_scripts(tried, trial, (FIRST, LONG)) if finding is not None)
    lines = [finding.lines()[0] for _, finding in run_checks(tried, trial) if finding is not None]
    assert [line[0] for line in lines] == list("✓✓✓✗✓–✓"), lines
    assert "remembers a bounded amount: not checked: self.seen is a " in lines[5]


def test_of_a_policy_that_came_to_no_end_nothing_else_is_checked() -> None:
    tried, trial = mine("pass", "return None"), Trial()
    findings = [finding for _, finding in try_scripts(tried, trial, (FIRST, LONG)) if finding is not None]
    findings += [finding for _, finding in run_checks(tried, trial) if finding is not None]
    findings.append(says_the_same_everywhere(trial.traces(), trial.traces(), tried))
    assert "".join(finding.lines()[0][0] for finding in findings) == "✗" * 2 + "–" * 8
