"""Where samples are worked on, and for how long."""

from __future__ import annotations

from math import exp

import pytest

from bus.events import ReplicaAdded, ReplicaLost, RoutesCut, RoutesOpened, SampleDropped, SampleStarted
from policies.in_flight import FINISHED, SHORTEST_S, InFlight, Span
from tests.policies.logs import Story, plan, ready


def told(standalone: int = 4, hybrid: int = 2, answers: int = 2, most: int = 32) -> tuple[Story, InFlight]:
    """Slots of the two replicas; two requests a sample."""
    flight = InFlight()
    story = Story(plan(rollout_n=answers, max_running_requests=most), flight.apply)
    story.write(ReplicaAdded(replica="s0", role="standalone", slots=standalone, seconds=1.0), "replica:s0")
    story.write(ReplicaAdded(replica="h0", role="hybrid", slots=hybrid, seconds=1.0), "replica:h0")
    return story, flight


def start(story: Story, *samples: int) -> None:
    for sample in samples:
        story.write(SampleStarted(sample=sample, version=0))


def places(flight: InFlight) -> list[str | None]:
    return [job.place for job in flight.jobs.values()]


def seconds(flight: InFlight) -> list[float]:
    return [round(exp(one.log_s), 6) for one in flight.finished]


def test_a_replica_has_a_place_for_as_many_samples_as_it_runs_requests_over_answers() -> None:
    _, flight = told(standalone=9, hybrid=4)
    assert flight.places == {"standalone": 4, "hybrid": 0}
    assert flight.hybrid_places == 2


def test_slots_for_requests_that_only_wait_at_a_replica_are_no_places() -> None:
    assert told(standalone=9, most=6)[1].places["standalone"] == 3


def test_a_replica_with_fewer_slots_than_answers_has_one_place() -> None:
    assert told(standalone=1, answers=8)[1].places["standalone"] == 1


def test_who_waits_longest_gets_the_next_place_and_its_seconds_count_from_there() -> None:
    story, flight = told()
    start(story, 0, 1, 2)
    assert places(flight) == ["standalone", "standalone", None]
    story.pass_seconds(10)
    story.write(ready(1))
    story.pass_seconds(3)
    story.write(ready(2))
    assert seconds(flight) == [10.0, 3.0]
    assert flight.worked_s(flight.jobs[0]) == 13.0


def test_hybrids_have_places_while_routes_to_them_are_open_and_what_they_did_is_kept_at_the_cut() -> None:
    story, flight = told()
    start(story, 0, 1, 2, 3)
    story.write(RoutesOpened(swing=1, replicas=("h0",)))
    assert places(flight) == ["standalone", "standalone", "hybrid", None]
    story.pass_seconds(5)
    story.write(RoutesCut(swing=2))
    assert places(flight) == ["standalone", "standalone", None, None]
    assert [sample for sample, _ in flight.waiting] == [2, 3]
    story.pass_seconds(1)
    story.write(ready(0))
    story.pass_seconds(2)
    story.write(ready(2))
    assert seconds(flight) == [6.0, 7.0]
    assert list(flight.hybrid_spans) == [Span(0.0, 5.0, False)]


def test_a_sample_that_ended_although_no_place_was_reckoned_for_it_changes_roles_with_one_that_had() -> None:
    story, flight = told(standalone=2)
    start(story, 0, 1)
    story.pass_seconds(4)
    story.write(ready(1))
    story.pass_seconds(4)
    story.write(ready(0))
    assert seconds(flight) == [4.0, 4.0]


def test_a_dropped_sample_frees_its_place_and_tells_nothing() -> None:
    story, flight = told(standalone=2)
    start(story, 0, 1)
    story.write(SampleDropped(sample=0, reason="failed"))
    assert places(flight) == ["standalone"]
    assert not flight.finished


def test_a_lost_replica_leaves_no_places_and_its_samples_wait_in_their_order() -> None:
    story, flight = told()
    start(story, 0, 1, 2)
    story.write(ReplicaLost(replica="s0", epoch=1))
    assert places(flight) == [None, None, None]
    assert [sample for sample, _ in flight.waiting] == [0, 1, 2]


def test_the_time_between_two_incarnations_of_the_rollouter_is_not_counted() -> None:
    story, flight = told()
    start(story, 0)
    story.pass_seconds(5)
    start(story, 1)
    story.epochs["rollouter"] = 2
    story.pass_seconds(-1000)
    start(story, 2)
    story.pass_seconds(2)
    story.write(ready(0))
    assert seconds(flight) == [7.0]


def test_the_memory_of_finished_samples_is_bounded() -> None:
    story, flight = told()
    story.samples(FINISHED + 10)
    assert len(flight.finished) == FINISHED
    assert not flight.jobs
    assert seconds(flight)[-1] == pytest.approx(SHORTEST_S)
