"""C-35 to C-37: who gets the next request, and how many there are."""

from __future__ import annotations

from collections import Counter

from bus.entry import Entry
from bus.events import (
    BlobRef,
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaAdded,
    ReplicaAwake,
    ReplicaLost,
    RoutesOpened,
    ServiceLost,
    ServiceStarted,
    WeightsApplied,
    WeightsPublished,
)
from bus.requests import Requests
from services.rollouter.routes import Routes

BLOB = BlobRef(name="answer", num_bytes=1, digest="0")


class Story:
    """Tells a fold what happened."""

    def __init__(self) -> None:
        self.requests = Requests()
        self.routes = Routes(self.requests)
        self.position = 0

    def tell(self, event: Event, source: str = "rollouter", epoch: int = 1) -> None:
        self.position += 1
        entry = Entry(self.position, source, epoch, False, 0, 0, "", event)
        self.requests.apply(entry)
        self.routes.apply(entry)

    def start(self, name: str, hybrid: bool = False, epoch: int = 1, slots: int = 4) -> None:
        role = "hybrid" if hybrid else "standalone"
        source = f"replica:{name}"
        self.tell(ServiceStarted.model_validate({"code": "", "role": role}), source, epoch)
        self.tell(ReplicaAdded.model_validate({"replica": name, "role": role, "slots": slots, "seconds": 0.0}), source, epoch)
        if hybrid:
            self.tell(ReplicaAwake(replica=name, swing=1, version=0, revision=0, seconds=0.0), source, epoch)
        else:
            self.tell(WeightsApplied(replica=name, version=0, revision=0, seconds=0.0), source, epoch)

    def request(self, number: int) -> str:
        route = self.routes.choose(number)
        assert route is not None
        self.tell(
            GenerationRequested(
                request=f"{number}.0", attempt=1, replica=route.name, epoch=route.epoch, swing=0, sample=number, answer=0, max_new_tokens=4
            )
        )
        return route.name

    def finish(self, number: int, replica: str, epoch: int = 1) -> None:
        finished = GenerationFinished(
            request=f"{number}.0", attempt=1, replica=replica, outcome="stop", num_tokens=1, version_spans=((0, 1),), blob=BLOB
        )
        self.tell(finished, f"replica:{replica}", epoch)


def test_c35_one_request_at_a_time_fans_out_evenly() -> None:
    story = Story()
    for name in ("s0", "s1", "s2", "s3"):
        story.start(name)
    chosen: Counter[str] = Counter()
    for number in range(40):
        name = story.request(number)
        chosen[name] += 1
        story.finish(number, name)
    assert chosen == {"s0": 10, "s1": 10, "s2": 10, "s3": 10}


def test_c36_counts_are_exact_across_remove_and_add() -> None:
    story = Story()
    story.start("s0")
    for number in range(3):
        assert story.request(number) == "s0"
    story.tell(ReplicaLost(replica="s0", epoch=1), "controller")
    assert story.requests.load("s0") == 0
    story.start("s0", epoch=2)
    story.request(3)
    assert story.requests.load("s0") == 1
    for number in range(3):
        story.finish(number, "s0", epoch=1)
    assert story.requests.load("s0") == 1, "a late release counted against the new incarnation"
    story.finish(3, "s0", epoch=2)
    assert story.requests.load("s0") == 0


def test_c16_nothing_is_asked_of_an_incarnation_that_has_ended_before_its_loss_is_declared() -> None:
    """A run that goes on begins with the ends of all who were there, and its rollouter may be up before its controller."""
    story = Story()
    story.start("s0")
    story.request(0)
    story.tell(ServiceLost(service="replica:s0", epoch=1, restarting=True), "supervisor")
    newer = WeightsPublished(version=1, revision=0, transport="file", uri="file:///w", digest="0", num_bytes=1, seconds=0.0)
    assert story.routes.choose(1) is None
    assert story.routes.free_slots() == 0
    assert story.routes.to_update(newer) is None
    assert story.requests.load("s0") == 1, "what it had is lost by its ReplicaLost, or by its successor"
    story.start("s0", epoch=2)
    assert story.request(1) == "s0"
    story.tell(ServiceLost(service="replica:s0", epoch=1, restarting=True), "supervisor")
    assert story.request(2) == "s0", "the end of a predecessor took the successor's route"


def test_c37_two_standalone_and_two_hybrids_are_four() -> None:
    story = Story()
    for name in ("s0", "s1"):
        story.start(name)
    for name in ("h0", "h1"):
        story.start(name, hybrid=True)
    assert story.routes.free_slots() == 2 * 4, "hybrids count before their routes are open"
    story.tell(RoutesOpened(swing=1, replicas=("h0", "h1")))
    story.tell(RoutesOpened(swing=1, replicas=("h0", "h1")))
    assert story.routes.free_slots() == 4 * 4
    assert [route.name for route in story.routes.by_name.values() if not route.hybrid] == ["s0", "s1"]


def test_c41_rebalancing_moves_only_what_finds_a_free_slot_below_the_even_share_elsewhere() -> None:
    story = Story()
    story.start("s0", slots=8)
    for number in range(8):
        assert story.request(number) == "s0"
    story.start("s1", slots=8)
    assert story.routes.moves(waiting=0) == [("s0", ("4.0", "5.0", "6.0", "7.0"))], "the newest half moves, the rest goes on"
    assert story.routes.moves(waiting=8) == [], "what waits fills the newcomer: nothing must move"


def test_an_answer_stays_on_its_replica_unless_it_left_for_a_reason() -> None:
    story = Story()
    for name in ("s0", "s1", "s2"):
        story.start(name)
    for number in range(6):
        assert chosen(story, number, stay="s2") == "s2"
        assert chosen(story, number, avoid="s1") in ("s0", "s2")
    story.request(0)
    assert chosen(story, 1, stay="s0") == "s0", "a little load is no reason to leave"


def chosen(story: Story, number: int, stay: str = "", avoid: str = "") -> str:
    route = story.routes.choose(number, stay, avoid)
    assert route is not None
    return route.name


def test_an_answer_that_failed_on_the_only_replica_is_tried_there_again() -> None:
    story = Story()
    story.start("s0")
    assert chosen(story, 1, avoid="s0") == "s0"
