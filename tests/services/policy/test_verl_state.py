"""A policy that was written for verl goes on from the log, and from a snapshot, as it would have."""

from __future__ import annotations

import re
from collections.abc import Callable

from bus.entry import Entry
from bus.events import (
    DeadlineMissed,
    PolicyAttached,
    SettingChanged,
    ShadowVerdict,
    SwitchRequested,
)
from bus.host import rebuild
from bus.snapshot import freeze, thaw_into
from policies.registry import create
from replay.differences import Difference, Report
from replay.lookahead import Outline
from replay.state_view import state_lines
from replay.subjects import subjects
from replay.verify import check_cores
from services.policy.core import PolicyCore
from services.policy.making import make_policy, policy_code
from tests.policies.logs import Story, plan
from tests.services.policy.verl_files import (
    RATIO_POLICIES,
    join,
    mine,
    requests,
    varied,
)


def core_of(theirs: str = "AdaptiveRatio") -> PolicyCore:
    return mine(RATIO_POLICIES, {"deactivate_ratio": 0.6}, f"r.py:{theirs}")


def test_a_restarted_policy_goes_on_as_the_one_before_would_have() -> None:
    steady, restarted = Story(plan()), Story(plan())
    for story in (steady, restarted):
        join(story, core_of())
        varied(story)
    join(restarted, core_of())
    for story in (steady, restarted):
        story.cycle(5.0, 2)
        story.grant()
        story.cycle(5.0, 2)
    assert requests(restarted) == requests(steady)
    assert requests(steady)[-1].give_back_at != requests(steady)[0].give_back_at


def test_a_frozen_one_goes_on_in_a_process_of_its_own_from_every_entry_on() -> None:
    story = Story(plan())
    join(story, core_of())
    varied(story)
    whole = core_of()
    rebuild(whole, story.entries)
    for cut in range(20, len(story.entries), 61):
        first, second = core_of(), core_of()
        rebuild(first, story.entries[:cut])
        if first.view.is_open:
            first.policy.verdict(first.view)
        thaw_into(second, freeze(first))
        for entry in story.entries[cut:]:
            second.apply(entry)
        assert freeze(second) == freeze(whole)
        assert second.policy.verdict(second.view) == whole.policy.verdict(whole.view)


def test_asking_changes_nothing() -> None:
    story = Story(plan())
    core = core_of()
    told: list[bytes] = []

    def ask(entry: Entry) -> None:
        core.apply(entry)
        if core.view.is_open:
            before = freeze(core)
            assert [core.policy.verdict(core.view) for _ in range(2)] == [core.policy.verdict(core.view)] * 2
            core.policy.give_back_at(core.view)
            assert freeze(core) == before
            told.append(before)

    story.listeners.append(ask)
    for entry in story.entries:
        ask(entry)
    varied(story)
    assert len(told) > 7


def test_a_setting_that_changes_while_a_boundary_is_open_leads_to_one_state() -> None:
    story = Story(plan())
    asked, silent = core_of("FixedRatio"), core_of("FixedRatio")

    def take(entry: Entry) -> None:
        for core in (asked, silent):
            core.apply(entry)
        if asked.view.is_open:
            asked.policy.verdict(asked.view)

    story.listeners.append(take)
    for entry in story.entries:
        take(entry)
    story.open_first_boundary()
    story.write(SettingChanged(name="staleness_threshold", value=1.0))
    story.write(DeadlineMissed(key="verdict:0", seconds=5.0))
    story.cycle()
    assert asked.policy.verdict(asked.view) == silent.policy.verdict(silent.view)
    assert freeze(asked) == freeze(silent)


def test_a_shadow_says_what_it_would_have_requested() -> None:
    story = Story(plan())
    join(story, PolicyCore(create("static_fully_async", {})))
    shadow = PolicyCore(make_policy("r.py:AdaptiveRatio", {"deactivate_ratio": 0.6}, RATIO_POLICIES), "shadow", "theirs")
    attached = PolicyAttached(name=shadow.policy.name, params=shadow.policy.params, mode="shadow", code="c", label="theirs")
    story.attach(shadow, attached)
    story.open_first_boundary()
    story.grant()
    story.cycle(8.0, 3)
    shadows = [(entry.source, entry.event.target) for entry in story.entries if isinstance(entry.event, ShadowVerdict)]
    assert shadows == [("policy:theirs", "rollout")] * 2


def test_the_digest_of_its_code_covers_the_file_and_what_runs_it() -> None:
    def changed(change: Callable[[str], str]) -> bool:
        return policy_code("r.py:Never", change(RATIO_POLICIES)) != policy_code("r.py:Never", RATIO_POLICIES)

    assert changed(lambda text: text + "\n")
    assert not changed(str)
    assert policy_code("r.py:Never", RATIO_POLICIES) != policy_code("default")


def test_a_verification_makes_it_from_the_log_and_recomputes_its_decisions() -> None:
    name, params = "r.py:AdaptiveRatio", {"deactivate_ratio": 0.6}
    story = Story(plan(policy=name, policy_params=params, policy_source=RATIO_POLICIES))
    core = core_of()
    code = policy_code(name, RATIO_POLICIES)
    story.attach(core, PolicyAttached(name=name, params=core.policy.params, mode="active", code=code, source=RATIO_POLICIES))
    varied(story)
    entries = story.entries
    assert differences(entries) == []
    third = [entry for entry in entries if isinstance(entry.event, SwitchRequested)][2]
    changed = third._replace(event=third.event.model_copy(update={"give_back_at": 1}))
    found = differences([changed if entry is third else entry for entry in entries])
    assert [(difference.position, difference.sort) for difference in found] == [(third.cause, "decision")]


def differences(entries: list[Entry]) -> list[Difference]:
    """What a verification finds of the policy's decisions."""
    report, outline = Report(), Outline.of(entries)
    (subject,) = [subject for subject in subjects(outline.attached) if subject.source == "policy"]
    check_cores(entries, outline, [subject], report)
    assert report.decisions > 0
    return [difference for difference in report.differences if difference.source == "policy"]


def test_who_looks_at_its_state_sees_how_much_it_remembers_and_not_the_file() -> None:
    story = Story(plan())
    core = join(story, core_of())
    varied(story)
    told = dict(state_lines(core))
    assert re.match(
        r"file=\d{4} characters, moments=8 boundaries and \d lends, lend=\d+, give_back_at=\d+, rebalance=True", told["its memory"]
    )
