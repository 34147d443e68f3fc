"""Nodes that join a running cluster are asked before anything starts on them: no Ray is needed, its answers are given here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bus.errors import LogUnavailable
from services.launcher.on_ray.newcomers import MOST_TRIES, Newcomers, Survey
from services.launcher.on_ray.orders import Where
from services.launcher.on_ray.remote import Failed, Gone, Outcome, Said, Then, Unclear

OLD, NEW = "0a" * 28, "0b" * 28
PATIENCE_S = 60.0


def where(node: str = NEW) -> Where:
    return Where(node=node, host="vm", address="10.0.0.2", gpus=())


class Cluster:
    """Answers when it is told to; its clock goes when it is told to."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, Then]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.said: list[str] = []
        self.open = 0
        """Questions that hold."""
        self.is_away = False
        """The run's server does not answer, so no question can be made."""
        survey = Survey(
            {OLD: {"trainer": "no model there"}},
            self.question,
            lambda text: text,
            self.judge,
            ("trainer", "policy"),
            PATIENCE_S,
            self.said.append,
        )
        self.newcomers = Newcomers(survey, self.ask, lambda seconds, action: self.timers.append((seconds, action)))

    @contextmanager
    def question(self) -> Iterator[str]:
        if self.is_away:
            raise LogUnavailable("no answer")
        self.open += 1
        try:
            yield "what is there?"
        finally:
            self.open -= 1

    def judge(self, name: str, answer: str) -> dict[str, str]:
        assert name == where().label
        return dict.fromkeys(answer.split(), "no folder there")

    def ask(self, node: str, text: str, then: Then) -> None:
        assert (node, text, self.open) == (NEW, "what is there?", 1)
        self.questions.append((node, then))

    def answer(self, outcome: Outcome) -> None:
        self.questions.pop(0)[1](outcome)

    def pass_time(self) -> None:
        """Everything that is due some time."""
        due, self.timers = self.timers, []
        for _, action in sorted(due, key=lambda timer: timer[0]):
            action()


def test_nodes_that_were_there_at_the_start_are_not_asked_again() -> None:
    newcomers = Cluster().newcomers
    assert newcomers.lack(OLD, ("policy",)) == ""
    assert newcomers.lack(OLD, ("policy", "trainer")) == "no model there"
    assert newcomers.barred(("trainer",)) == (), "the placement has barred it already"


def test_a_node_that_joins_is_asked_once_for_all_who_are_put_there_and_they_wait_for_its_answer() -> None:
    cluster = Cluster()
    heard: list[str] = []
    assert cluster.newcomers.lack(NEW, ("trainer",)) is None
    cluster.newcomers.ask(where(), lambda: heard.append("trainer"))
    cluster.newcomers.ask(where(), lambda: heard.append("policy"))
    assert (heard, len(cluster.questions)) == ([], 1)
    cluster.answer(Said("trainer"))
    assert (heard, cluster.open) == (["trainer", "policy"], 0)
    assert cluster.newcomers.lack(NEW, ("trainer",)) == "no folder there"
    assert cluster.newcomers.lack(NEW, ("policy",)) == ""
    assert (cluster.newcomers.barred(("trainer", "policy")), cluster.newcomers.barred(("policy",))) == ((NEW,), ())


def test_the_user_hears_once_which_node_is_not_for_whom_and_why() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.newcomers.tell(where(), ("trainer", "trainer", "replica:h0"), "no folder there")
    assert cluster.said == [
        "node vm (0b0b0b0b) is not for trainer and replica:h0, another one is looked for: no folder there "
        "(it is asked again when it joins anew: `ray stop`, `ray start` there)"
    ]


@pytest.mark.parametrize("outcome", [Gone("no answer"), Unclear("no answer")])
def test_a_node_that_does_not_get_to_answering_is_asked_again_and_then_nothing_is_started_there(outcome: Outcome) -> None:
    cluster = Cluster()
    cluster.newcomers.ask(where(), lambda: None)
    cluster.timers.clear()
    for _ in range(MOST_TRIES - 1):
        cluster.answer(outcome)
        assert (cluster.newcomers.lack(NEW, ("policy",)), cluster.open) == (None, 0)
        cluster.pass_time()
    cluster.answer(outcome)
    assert cluster.newcomers.lack(NEW, ("policy",)) == "nothing starts there: no answer"


def test_a_node_that_cannot_be_looked_at_or_says_nothing_for_long_is_for_nobody() -> None:
    cluster = Cluster()
    cluster.newcomers.ask(where(), lambda: None)
    cluster.answer(Failed("ImportError: torch"))
    assert cluster.newcomers.lack(NEW, ("policy",)) == "nothing starts there: ImportError: torch"
    silent = Cluster()
    silent.newcomers.ask(where(), lambda: None)
    silent.pass_time()
    assert silent.newcomers.lack(NEW, ("trainer",)) == "nothing starts there: it did not answer within 60 s"
    silent.answer(Said(""))
    assert silent.newcomers.lack(NEW, ("trainer",)) == "nothing starts there: it did not answer within 60 s", "that came too late"


def test_while_the_driver_itself_cannot_reach_the_server_nobody_is_judged() -> None:
    cluster = Cluster()
    cluster.is_away = True
    cluster.newcomers.ask(where(), lambda: None)
    assert cluster.questions == []
    cluster.is_away = False
    cluster.timers[0][1]()
    cluster.answer(Said(""))
    assert cluster.newcomers.lack(NEW, ("trainer",)) == ""


def test_nothing_of_a_question_is_left_when_the_run_ends_before_the_answer() -> None:
    cluster = Cluster()
    cluster.newcomers.ask(where(), lambda: pytest.fail("nobody waits any more"))
    cluster.newcomers.close()
    assert cluster.open == 0
    cluster.answer(Said(""))
    cluster.pass_time()
