"""Which cores a verification recomputes, and when it takes an incarnation for its own code's."""

from __future__ import annotations

from bus.events import PolicyAttached
from policies.registry import POLICIES
from replay.subjects import subjects


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
