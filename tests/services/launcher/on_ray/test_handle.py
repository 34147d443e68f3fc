"""One incarnation on a cluster, with an actor and a cluster that do what a test says: no end counts before it is verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from services.launcher.on_ray.handle import AGAIN_S, KILL_S, KILLED, TERMINATED, Orders, RayHandle
from services.launcher.on_ray.orders import Begun, Ended, Left, Order, Remains, Where
from services.launcher.on_ray.placement import Seat
from services.launcher.on_ray.remote import Actor, Failed, Gone, Outcome, Said, Then, Unclear
from services.launcher.protocol import RunPlace, ServiceSpec

WHERE = Where(node="0123456789ab", host="host17", address="10.0.0.17", gpus=("3", "5"))
LABEL = "host17 (01234567)"
BEGUN = Begun(pid=77, since=1234)
NODES = frozenset({WHERE.node, "another"})
DIED = Gone("The actor is dead because its worker process has died.")


class Cluster:
    """The launcher's side of a handle, and its actor: calls wait until a test answers them."""

    def __init__(self, folder: Path) -> None:
        self.orders = Orders(RunPlace("redis://host", "r1", folder), folder)
        self.calls: list[tuple[str, Then, tuple[str, ...]]] = []
        self.sweeps: list[tuple[str, Remains, Then]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.time = 0.0
        self.discarded = 0
        self.opened: list[ServiceSpec] = []
        self.actor: Actor = self
        """The one that is opened next."""

    def check(self) -> None: ...

    def now(self) -> float:
        return self.time

    def post(self, action: Callable[[], None]) -> None:
        action()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.timers.append((self.time + seconds, action))

    def open(self, spec: ServiceSpec, seat: Seat) -> Actor:
        self.opened.append(spec)
        return self.actor

    def sweep(self, node: str, remains: str, then: Then) -> None:
        self.sweeps.append((node, Remains.model_validate_json(remains), then))

    def call(self, method: str, then: Then, *arguments: str) -> None:
        self.calls.append((method, then, arguments))

    def discard(self) -> None:
        self.discarded += 1

    def asked(self) -> list[str]:
        """What the actor has been asked and has not answered."""
        return [method for method, _, _ in self.calls]

    def answer(self, method: str, outcome: Outcome) -> tuple[str, ...]:
        """Answers the oldest such question; returns its arguments."""
        number = self.asked().index(method)
        _, then, arguments = self.calls.pop(number)
        then(outcome)
        return arguments

    def wait(self, seconds: float) -> None:
        self.time += seconds
        due, self.timers = self.timers, []
        for at, action in due:
            if at <= self.time:
                action()
            else:
                self.timers.append((at, action))


class Other:
    """Another actor."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def call(self, method: str, then: Then, *arguments: str) -> None:
        self._cluster.call(method, then, *arguments)

    def discard(self) -> None:
        self._cluster.discard()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def asked_for(cluster: Cluster) -> RayHandle:
    handle = RayHandle(cluster, ServiceSpec("replica", "h0", token="t1"), Seat(None), "a node with 2 GPU", RayHandle.start)
    handle.begin()
    return handle


def placed(cluster: Cluster) -> RayHandle:
    handle = asked_for(cluster)
    cluster.answer("where", Said(WHERE.model_dump_json()))
    return handle


def running(cluster: Cluster) -> RayHandle:
    handle = placed(cluster)
    cluster.answer("start", Said(BEGUN.model_dump_json()))
    return handle


def left(*pids: int) -> Said:
    return Said(Left(pids=pids).model_dump_json())


def test_it_is_started_where_ray_has_placed_it_with_its_gpus_and_waits_for_nothing_then(cluster: Cluster) -> None:
    handle = asked_for(cluster)
    assert handle.waits_for() == "a node with 2 GPU"
    cluster.answer("where", Said(WHERE.model_dump_json()))
    assert handle.waits_for() == ""
    (text,) = cluster.answer("start", Said(BEGUN.model_dump_json()))
    order = Order.model_validate_json(text)
    assert order.environment == {"CUDA_VISIBLE_DEVICES": "3,5"}
    assert order.spec == ServiceSpec("replica", "h0", token="t1", device="cuda:0,cuda:1")
    assert order.place == cluster.orders.place
    assert handle.poll() is None


def test_its_end_is_what_its_actor_says_of_it(cluster: Cluster) -> None:
    handle = running(cluster)
    cluster.answer("wait", Said(""))
    assert handle.poll() is None
    cluster.answer("wait", Said(Ended(code=3, how=f"exit code 3 on {LABEL}: fenced").model_dump_json()))
    assert (handle.poll(), handle.how_it_ended()) == (3, f"exit code 3 on {LABEL}: fenced")
    assert cluster.discarded == 1, "its room is free again"


@pytest.mark.parametrize("question", ["where", "start", "wait"])
def test_an_actor_that_does_not_answer_may_live_and_is_asked_again(cluster: Cluster, question: str) -> None:
    handle = {"where": asked_for, "start": placed, "wait": running}[question](cluster)
    for _ in range(3):
        cluster.answer(question, Unclear("unavailable"))
        assert cluster.asked() == []
        cluster.wait(AGAIN_S)
        assert cluster.asked() == [question]
    assert handle.poll() is None
    assert cluster.sweeps == []


@pytest.mark.parametrize("begun", [False, True])
def test_when_its_actor_has_died_it_has_ended_only_when_its_node_says_that_nobody_is_left(cluster: Cluster, begun: bool) -> None:
    handle = running(cluster) if begun else placed(cluster)
    cluster.answer("wait" if begun else "start", DIED)
    (node, remains, then) = cluster.sweeps.pop()
    assert (node, remains) == (WHERE.node, Remains(token="t1", begun=BEGUN if begun else None))
    for nobody_knows in (left(77), Failed("no"), Unclear("no"), DIED):
        then(nobody_knows)
        assert handle.poll() is None
        cluster.wait(AGAIN_S)
        (_, _, then) = cluster.sweeps.pop()
    then(left())
    assert handle.poll() == (KILLED if begun else 1)
    assert handle.how_it_ended().startswith(f"signal 9 on {LABEL}, for its actor has died (The actor is dead because")


@pytest.mark.parametrize("state", ["placed", "running", "unclear", "lost", "lost for good"])
def test_the_clusters_word_that_its_node_is_dead_is_the_verification_of_its_end(cluster: Cluster, state: str) -> None:
    handle = placed(cluster) if state == "placed" else running(cluster)
    if state == "unclear":
        cluster.answer("wait", Unclear("unavailable"))
    if state.startswith("lost"):
        cluster.answer("wait", DIED)
    if state == "lost for good":
        cluster.sweeps[0][2](Gone("the node does not answer"))
    handle.kill()
    handle.look(NODES)
    handle.look(None)
    assert handle.poll() is None
    handle.look(frozenset({"another"}))
    assert (handle.poll(), handle.how_it_ended()) == (KILLED, f"the node {LABEL} is gone")


def test_what_comes_after_its_end_changes_nothing(cluster: Cluster) -> None:
    handle = running(cluster)
    handle.look(frozenset())
    cluster.answer("wait", Said(Ended(code=0, how="late").model_dump_json()))
    handle.kill()
    handle.terminate()
    cluster.wait(100)
    assert handle.poll() == KILLED
    assert "gone" in handle.how_it_ended()
    assert cluster.calls == []


def test_one_without_a_place_is_ended_at_once_for_nothing_was_started(cluster: Cluster) -> None:
    handle = asked_for(cluster)
    handle.kill()
    assert handle.poll() == KILLED
    assert handle.how_it_ended() == "signal 9, before it was started; it waited for a node with 2 GPU"
    assert (handle.waits_for(), cluster.discarded) == ("", 1)
    cluster.answer("where", Said(WHERE.model_dump_json()))
    assert cluster.asked() == []


def test_one_that_is_ended_before_it_was_asked_for_is_never_asked_for(cluster: Cluster) -> None:
    handle = RayHandle(cluster, ServiceSpec("trainer"), Seat(None), "a node", RayHandle.start)
    handle.terminate()
    handle.begin()
    assert (handle.poll(), cluster.opened) == (TERMINATED, [])


def test_one_that_is_not_to_be_where_it_was_placed_asks_for_another_place_and_hears_nothing_of_the_first(cluster: Cluster) -> None:
    put: list[RayHandle] = []
    handle = RayHandle(cluster, ServiceSpec("trainer"), Seat(None), "a node", put.append)
    handle.begin()
    first, cluster.actor = cluster.actor, Other(cluster)
    cluster.answer("where", Said(WHERE.model_dump_json()))
    assert put == [handle]
    handle.ask("free_port", lambda port: pytest.fail("of a node that it has left"))
    handle.leave("another node")
    assert (first, cluster.discarded, handle.where, handle.waits_for()) == (cluster, 1, None, "another node")
    cluster.answer("free_port", Said("77"))
    elsewhere = WHERE.model_copy(update={"node": "another"})
    cluster.answer("where", Said(elsewhere.model_dump_json()))
    assert (handle.where, put) == (elsewhere, [handle, handle])
    handle.start()
    handle.leave("a third one")
    assert cluster.asked() == ["start"], "it is started, so it stays"


def test_signals_are_its_actors_business_and_an_actor_that_does_not_kill_is_ended_itself(cluster: Cluster) -> None:
    handle = running(cluster)
    handle.terminate()
    assert handle.kill()
    assert cluster.asked() == ["wait", "terminate", "kill"]
    handle.look(NODES)
    assert cluster.discarded == 0
    cluster.wait(KILL_S)
    handle.look(NODES)
    assert cluster.discarded == 1
    assert handle.poll() is None, "that its actor is ended says nothing about who was started"
    cluster.answer("wait", DIED)
    cluster.sweeps.pop()[2](left())
    assert handle.poll() == KILLED


def test_what_cannot_be_started_says_why_and_leaves_nobody(cluster: Cluster) -> None:
    handle = placed(cluster)
    cluster.answer("start", Failed("OSError: no space"))
    assert handle.poll() is None
    cluster.sweeps.pop()[2](left())
    assert (handle.poll(), handle.how_it_ended()) == (1, f"it could not be started on {LABEL}: OSError: no space")


def test_one_whose_actor_never_came_to_be_needs_no_verification(cluster: Cluster) -> None:
    handle = asked_for(cluster)
    cluster.answer("where", Gone("no such package"))
    assert (handle.poll(), handle.how_it_ended()) == (1, "it could not be started: no such package")
