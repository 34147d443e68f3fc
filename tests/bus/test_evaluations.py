"""Which version is evaluated, which one waits, and when the deadline counts: the fold alone."""

from __future__ import annotations

import pytest

from bus.codec import decode, encode
from bus.entry import Entry
from bus.evaluations import Evaluations, number_of, prompt_of
from bus.events import (
    DeadlineMissed,
    EvalDone,
    EvalRequested,
    Event,
    GenerationRequested,
    ReplicaFailed,
    ReplicaLost,
    RoutesCut,
    RunPlanned,
    ServiceStarted,
    WeightsPublished,
)
from tests.cases.runs import small_plan


class Story:
    """Tells a fold what happened."""

    def __init__(self, **plan: object) -> None:
        self.evaluations = Evaluations()
        self._position = 0
        self.tell(small_plan(**{"num_validation": 2, "eval_every_versions": 1, **plan}))

    def tell(self, *events: Event, source: str = "trainer", epoch: int = 1) -> Evaluations:
        for event in events:
            self._position += 1
            self.evaluations.apply(Entry(self._position, source, epoch, False, 0, 0, "", event))
        return self.evaluations


def published(version: int, revision: int = 0) -> WeightsPublished:
    return WeightsPublished(
        version=version, revision=revision, transport="shm", uri=f"w{version}.{revision}", digest="", num_bytes=1, seconds=0.0
    )


def done(version: int) -> EvalDone:
    return EvalDone(version=version, num_prompts=2, partial=False, metrics={})


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"eval_every_versions": 2}, [2, 4]),
        ({"eval_every_versions": 2, "eval_before_train": True}, [0, 2, 4]),
        ({"eval_every_versions": 0, "eval_before_train": True}, [0]),
        ({"eval_every_versions": 0}, []),
        ({"eval_every_versions": 1, "eval_before_train": True, "num_validation": 0}, []),
    ],
)
def test_versions_that_the_number_divides_are_due_and_the_initial_one_if_asked_for(settings: dict[str, object], due: list[int]) -> None:
    evaluations = Story(**settings).evaluations
    assert [version for version in range(6) if evaluations.is_due(version)] == due


def test_one_is_evaluated_the_newest_waits_and_what_it_replaces_is_said_to_be_superseded() -> None:
    story = Story()
    evaluations = story.tell(published(1), published(2), published(3))
    assert evaluations.current == published(1)
    assert evaluations.waiting == published(3)
    assert list(evaluations.superseded) == [2]
    assert evaluations.needed_uris == {"w1.0", "w2.0", "w3.0"}
    story.tell(done(2), done(1))
    assert evaluations.needed_uris == {"w3.0"}
    assert evaluations.current == published(3)
    assert not evaluations.superseded
    story.tell(done(3))
    assert not evaluations.pending
    assert evaluations.needed_uris == set()


@pytest.mark.parametrize(("newer", "superseded"), [((3,), []), ((3, 4), [3])])
def test_what_was_begun_before_it_was_known_to_be_superseded_is_evaluated(newer: tuple[int, ...], superseded: list[int]) -> None:
    """The rollouter says that 1 is done and begins 2; what is newer is in the log before its word, and was not read yet."""
    story = Story()
    story.tell(published(1), published(2), published(3), done(1), *(published(version) for version in newer[1:]))
    evaluations = story.evaluations
    assert "w2.0" in evaluations.needed_uris
    story.tell(EvalRequested(version=2, replica="s0", epoch=1), source="rollouter")
    assert evaluations.current == published(2)
    assert evaluations.pinned is not None
    assert evaluations.waiting == published(newer[-1])
    assert list(evaluations.superseded) == superseded
    assert [deadline.key for deadline in evaluations.deadlines()] == ["eval:2"]


def test_what_is_superseded_and_published_anew_is_needed_as_it_is_now() -> None:
    assert Story().tell(published(1), published(2), published(3), published(2, revision=1)).needed_uris == {"w1.0", "w2.1", "w3.0"}


def test_a_second_outcome_and_a_second_publication_count_for_nobody() -> None:
    evaluations = Story().tell(published(1), done(1), done(1), published(1, revision=1))
    assert not evaluations.pending


@pytest.mark.parametrize(
    ("event", "source", "epoch"),
    [
        (ReplicaLost(replica="h0", epoch=2), "controller", 1),
        (ReplicaFailed(replica="h0", during="generate", error=""), "replica:h0", 2),
        (ServiceStarted(code="", role="hybrid"), "replica:h0", 3),
        (RoutesCut(swing=2), "rollouter", 1),
        (published(1, revision=1), "trainer", 2),
    ],
    ids=["lost", "failed", "replaced", "cut", "published anew"],
)
def test_a_pinned_replica_that_cannot_go_on_is_free(event: Event, source: str, epoch: int) -> None:
    story = Story()
    story.tell(published(1), EvalRequested(version=1, replica="h0", epoch=2))
    assert story.evaluations.pinned is not None
    story.tell(event, source=source, epoch=epoch)
    assert story.evaluations.pinned is None
    assert story.evaluations.current is not None


@pytest.mark.parametrize(
    ("event", "source", "epoch"),
    [
        (ReplicaLost(replica="s0", epoch=1), "controller", 1),
        (ReplicaLost(replica="s1", epoch=9), "controller", 1),
        (ServiceStarted(code="", role="standalone"), "replica:s0", 2),
        (RoutesCut(swing=2), "rollouter", 1),
        (published(2), "trainer", 1),
    ],
    ids=["lost before", "another lost", "itself", "standalone", "newer"],
)
def test_what_does_not_concern_it_leaves_it_pinned(event: Event, source: str, epoch: int) -> None:
    story = Story()
    story.tell(published(1), EvalRequested(version=1, replica="s0", epoch=2))
    assert story.tell(event, source=source, epoch=epoch).pinned is not None


def test_the_deadline_is_of_the_version_whose_turn_it_is_and_acts_once() -> None:
    story = Story(eval_timeout_s=7.0)
    story.tell(published(1), published(2))
    assert [(deadline.key, deadline.seconds) for deadline in story.evaluations.deadlines()] == [("eval:1", 7.0)]
    evaluations = story.tell(DeadlineMissed(key="eval:1", seconds=7.0), source="controller")
    assert evaluations.timed_out
    assert not evaluations.deadlines()
    story.tell(done(1))
    assert not evaluations.timed_out
    assert [deadline.key for deadline in evaluations.deadlines()] == ["eval:2"]


def test_a_validation_prompt_has_the_number_of_no_sample() -> None:
    numbers = [number_of(prompt) for prompt in range(100)]
    assert max(numbers) < 0
    assert [prompt_of(number) for number in numbers] == list(range(100))


def test_logs_without_evaluations_are_read_as_they_were_written() -> None:
    request = GenerationRequested(request="0.0", attempt=1, replica="s0", epoch=1, swing=0, sample=0, answer=0, max_new_tokens=4)
    old = request.model_dump(exclude={"evaluates"})
    assert GenerationRequested.model_validate(old) == request
    plan = small_plan()
    assert (plan.num_validation, plan.eval_every_versions, plan.eval_before_train) == (0, 0, False)
    assert isinstance(decode("RunPlanned", 1, encode(plan)), RunPlanned)
