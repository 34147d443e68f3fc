"""What a policy may answer, and how it is said when it may not."""

from __future__ import annotations

import pytest

from bus.errors import PolicyFailed
from policies.base import PolicyBase, keep, lend
from policies.protocol import Verdict
from policies.view import ScheduleView
from services.policy.answers import choice_faults, number_faults, verdict_faults
from services.policy.core import PolicyCore
from services.policy.newcomer import made_up_boundary
from tests.policies.logs import Story, plan


class Says(PolicyBase):
    """Answers what a test says."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def verdict(self, view: ScheduleView) -> Verdict:
        return self.answer  # type: ignore[return-value]


def test_what_can_be_written_and_understood_is_an_answer() -> None:
    for answer in (lend(2, "r", n=1, x=0.5), keep("r"), lend(2**63 - 1, "r" * 1000), Verdict("rollout", 0, "r", {}, 1.5)):
        assert list(verdict_faults(answer)) == []
    assert list(number_faults(0)) == list(choice_faults(False)) == []


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (None, "None, expected: a Verdict, made by .*return"),
        ("lend", "'lend', expected: a Verdict"),
        (lend(-1, "r"), "give_back_at -1, expected: give_back_at as a whole number"),
        (lend(1.5, "r"), "give_back_at 1.5"),  # type: ignore[arg-type]
        (lend(True, "r"), "give_back_at True"),
        (lend(10**30, "r"), "give_back_at 10{30},"),
        (lend(10**5000, "r"), "give_back_at a int that cannot be shown"),
        (lend(1, ""), "reason ''"),
        (lend(1, None), "reason None"),  # type: ignore[arg-type]
        (lend(1, "r" * 300_000), "a reason of 300000 characters, 'r{79}…"),
        (lend(1, "r", x=float("nan")), "evidence x=nan"),
        (lend(1, "r", x=float("inf")), "evidence x=inf"),
        (lend(1, "r", x="1"), "evidence x='1'"),  # type: ignore[arg-type]
        (lend(1, "r", x=10**400), "evidence x=10"),
        (Verdict("rollout", 1, "r", None), "evidence None"),  # type: ignore[arg-type]
        (Verdict("sideways", 1, "r"), "target 'sideways'"),  # type: ignore[arg-type]
        (Verdict("rollout", 1, "r", {}, -1.0), "max_lent_s -1.0"),
    ],
)
def test_anything_else_is_refused_in_words_that_a_user_understands(answer: object, got: str) -> None:
    core = PolicyCore(Says(answer))
    for entry in Story(plan()).entries:
        core.apply(entry)
    with pytest.raises(PolicyFailed, match=f"policy Says: verdict answered {got}") as raised:
        core.answer_to(made_up_boundary(core.view))
    assert len(str(raised.value)) < 400
