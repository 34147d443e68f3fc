"""Which cores a verification recomputes, and when it takes an incarnation for its own code's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.entry import Draft, Entry
from bus.errors import PolicyFailed
from bus.events import PolicyAttached, RunPlanned, SwitchRequested
from bus.host import Host, rebuild
from bus.memory_log import MemoryLog, MemoryStore
from policies.registry import POLICIES
from replay.differences import Report
from replay.limit import LIMIT_S
from replay.subjects import subjects
from replay.verify import verify
from services.policy.core import PolicyCore
from services.policy.making import make_policy, policy_code
from tests.policies.logs import Story, plan

NAME = "mine.py:Mine"
SOURCE = """
from policies.base import PolicyBase, keep


class Mine(PolicyBase):
    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.seen = 0

    def verdict(self, view):
        return keep("x", seen=self.seen, inverse=1 / (self.at - view.boundary.version))

    def decided(self, view):
        self.seen += 1
        if self.at == 100 + view.boundary.version:
            raise ValueError("no more")
"""


def attached(name: str) -> PolicyAttached:
    return PolicyAttached(name=name, params={}, mode="active", code="")


def test_every_service_with_a_core_is_a_subject_with_a_core_of_its_own() -> None:
    made = [subject.make(None) for subject in subjects()]
    assert [core.source for core in made] == ["trainer", "rollouter", "controller", "policy"]
    assert [subject.source for subject in subjects()] == [core.source for core in made]
    assert all(subject.make(None) is not core for subject, core in zip(subjects(), made, strict=True))


def test_each_subject_and_each_policy_has_a_code_digest_of_its_own() -> None:
    *others, policy = subjects()
    codes = [subject.code(None) for subject in others] + [policy.code(attached(name)) for name in POLICIES]
    assert len(set(codes)) == len(codes) == 3 + len(POLICIES)
    assert [subject.code(None) for subject in subjects()[:3]] == codes[:3]


def test_a_policy_that_this_checkout_does_not_have_is_other_code() -> None:
    *_, policy = subjects()
    unknown = attached("soothsayer")
    assert policy.code(unknown) not in {"", *(policy.code(attached(name)) for name in POLICIES)}
    assert policy.make(unknown).source == "policy"


# --- policies of a user's


def own(at: int, source: str = SOURCE) -> PolicyAttached:
    return PolicyAttached(name=NAME, params={"at": at}, mode="active", code=policy_code(NAME, source), source=source)


def story_with(at: int) -> Story:
    """A log on which the policy has answered four boundaries; it raises at boundary `at`, or when boundary `at` - 100 is decided."""
    story = Story(plan(policy=NAME, policy_source=SOURCE))
    story.attach(PolicyCore(make_policy(NAME, {"at": at}, SOURCE)), own(at))
    story.open_first_boundary()
    for _ in range(3):
        story.grant()
        story.cycle()
    return story


def verified(story: Story, limit_s: float = LIMIT_S) -> Report:
    """Only the policy: a log by hand breaks rules of others."""
    active = [replace(subject, limit_s=limit_s) for subject in subjects() if subject.source == "policy"]
    report = verify(story.entries, active)
    report.differences[:] = [each for each in report.differences if each.source == "policy"]
    return report


def test_a_policy_of_a_user_is_made_from_the_log_and_its_decisions_are_compared() -> None:
    story = story_with(-1)
    report = verified(story)
    assert (report.decisions, report.differences, report.other_incarnations) == (4, [], [])


def test_a_changed_decision_of_such_a_policy_is_found() -> None:
    story = story_with(-1)
    index, entry = next((i, each) for i, each in enumerate(story.entries) if isinstance(each.event, SwitchRequested))
    assert isinstance(entry.event, SwitchRequested)
    story.entries[index] = entry._replace(event=entry.event.model_copy(update={"give_back_at": 3}))
    assert "SwitchRequested is not what the core decides" in [each.what for each in verified(story).differences]


def test_another_text_than_the_recorded_one_is_found() -> None:
    """By the chain, by what was planned, and as other code than that of the decisions."""
    story = story_with(-1)
    index, entry = next((i, each) for i, each in enumerate(story.entries) if isinstance(each.event, PolicyAttached))
    changed = own(-1).model_copy(update={"source": SOURCE.replace("0) ->", "1) ->")})
    story.entries[index] = entry._replace(event=changed)
    report = verified(story)
    assert {each.sort for each in report.differences} == {"chain", "invariant"}
    assert "the text of mine.py:Mine that attached is not the one that was planned" in [each.what for each in report.differences]
    assert len(report.other_incarnations) == 1


def test_a_policy_that_attaches_for_a_request_that_is_none_is_found() -> None:
    store = MemoryStore.create(plan(), at=0)
    attached = PolicyAttached(name="default", params={}, mode="active", code="", request=1)
    store.write("policy", 1, [Draft(attached, derived=False, cause=0, at=0)])
    assert isinstance(store.entries[0].event, RunPlanned)
    report = verify(store.entries, [])
    assert "default attached for entry 1, which asked for no policy" in [each.what for each in report.differences]


def test_a_text_that_this_checkout_cannot_run_is_other_code() -> None:
    *_, policy = subjects()
    newer = own(0).model_copy(update={"source": f"import policies.of_tomorrow\n{SOURCE}"})
    assert policy.code(newer) not in {"", policy.code(own(0))}
    assert policy.make(newer).source == "policy"


@pytest.mark.parametrize(("at", "answers"), [(2, 2), (101, 1)])
def test_a_policy_whose_own_code_raised_has_said_no_more_and_that_is_no_difference(at: int, answers: int) -> None:
    with pytest.raises(PolicyFailed, match=r"policy mine.py:Mine: (verdict raised ZeroDivisionError|decided raised ValueError: no more)"):
        story_with(at)
    story = Story(plan(policy=NAME, policy_source=SOURCE))
    log = MemoryLog(story.store)
    core, attached = PolicyCore(make_policy(NAME, {"at": at}, SOURCE)), own(at)
    producer = log.attach("policy", Draft(attached, derived=False, cause=0, at=0)).producer
    host = Host(core, log, producer, lambda: 0)
    rebuild(core, story.entries)
    alive = True

    def take(entry: Entry) -> None:
        nonlocal alive
        try:
            if alive and entry.position > 2:
                host.take([entry])
        except PolicyFailed:
            alive = False

    story.deliver()
    story.listeners.append(take)
    story.open_first_boundary()
    for _ in range(3):
        story.grant()
        story.cycle()
    assert not alive
    report = verified(story)
    assert (report.decisions, report.differences) == (answers, [])


ENDLESS = """
from policies.base import PolicyBase, keep


class Mine(PolicyBase):
    def __init__(self, at: int = 0) -> None:
        self.at = at

    def verdict(self, view):
        while self.at == view.boundary.version:
            try:
                self.at += 0
            except Exception:
                pass
        return keep("x")

    def decided(self, view):
        while self.at == 100 + view.boundary.version:
            pass
"""


def story_without_end(at: int) -> Story:
    """Twice a policy attaches that hangs at boundary `at`, or when boundary `at` - 100 is decided; both processes were killed there."""
    story = Story(plan(policy=NAME, policy_source=ENDLESS))
    for _ in range(2):
        log = MemoryLog(story.store)
        log.attach("policy", Draft(own(at, ENDLESS), derived=False, cause=0, at=0))
    story.deliver()
    story.open_first_boundary()
    for _ in range(3):
        story.grant()
        story.cycle()
    return story


@pytest.mark.parametrize("at", [0, 100])
def test_a_policy_that_never_came_to_an_end_is_interrupted_and_has_said_no_more(at: int) -> None:
    said = verified(story_without_end(at), 0.1).differences
    # Asked in time, it answers the boundary in the second case; its process was killed before it had.
    assert [each.sort for each in said] == []


def test_what_is_recorded_of_a_policy_after_it_never_came_to_an_end_is_found() -> None:
    story = story_without_end(0)
    at = next(index for index, each in enumerate(story.entries) if each.event.kind == "TrainGranted")
    lie = SwitchRequested(target="train", answers=0, amends=None, give_back_at=0, max_lent_s=0.0, reason="x", evidence={})
    boundary = next(each.position for each in story.entries if each.event.kind == "BoundaryOpened")
    story.entries[at] = story.entries[at]._replace(source="policy", epoch=2, derived=True, cause=boundary, event=lie)
    what = [each.what for each in verified(story, 0.1).differences if each.sort == "decision"]
    assert any("its own code failed (policy mine.py:Mine: " in each and "mine.py, line 1" in each for each in what), what
