"""Ranks on a cluster come and go together: what is started when, and whose exit is the trainer's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from services.launcher.on_ray.handle import KILLED, Orders, RayHandle
from services.launcher.on_ray.orders import Begun, Ended, Left, Order, Where
from services.launcher.on_ray.placement import Seat
from services.launcher.on_ray.ranks import ENDS_S, Gang
from services.launcher.on_ray.remote import Gone, Outcome, Said, Then
from services.launcher.protocol import RunPlace, ServiceSpec

TRAINER = ServiceSpec("trainer", token="t")


class ScriptedActor:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Then, tuple[str, ...]]] = []
        self.ended = False

    def call(self, method: str, then: Then, *arguments: str) -> None:
        self.asked.append((method, then, arguments))

    def discard(self) -> None:
        self.ended = True

    def answer(self, method: str, outcome: Outcome | str) -> tuple[str, ...]:
        """Answers the oldest call of a method; returns its arguments."""
        call = next(call for call in self.asked if call[0] == method)
        self.asked.remove(call)
        call[1](Said(outcome) if isinstance(outcome, str) else outcome)
        return call[2]

    def was_asked(self, method: str) -> bool:
        return any(call[0] == method for call in self.asked)


class Cluster:
    """Two ranks of a trainer, each on a node of its own; everything happens at once, in the test's thread."""

    def __init__(self, tmp_path: Path) -> None:
        self.orders = Orders(RunPlace("redis://server", "run-1", tmp_path), tmp_path)
        self.actors: list[ScriptedActor] = []
        self.handles: list[RayHandle] = []
        self.swept: list[tuple[str, Then]] = []
        self.time = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.gang = Gang(self, TRAINER, [Seat(0, num_cpus=1), Seat(1, num_cpus=1)])

    def seat(self, spec: ServiceSpec, seat: Seat, placed: Callable[[RayHandle], None]) -> RayHandle:
        handle = RayHandle(self, spec, seat, "a node with 1 CPU", placed)
        handle.begin()
        self.handles.append(handle)
        return handle

    def check(self) -> None:
        pass

    def now(self) -> float:
        return self.time

    def post(self, action: Callable[[], None]) -> None:
        action()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self._due.append((self.time + seconds, action))

    def open(self, spec: ServiceSpec, seat: Seat) -> ScriptedActor:
        self.actors.append(ScriptedActor())
        return self.actors[-1]

    def sweep(self, node: str, remains: str, then: Then) -> None:
        self.swept.append((node, then))

    # --- what happens ---

    def place(self, rank: int) -> None:
        node = "ab"[rank]
        self.actors[rank].answer("where", Where(node=node, host=f"host-{node}", address=f"10.0.0.{rank}", gpus=()).model_dump_json())

    def start(self) -> list[Order]:
        """Both are placed and started; returns what was ordered."""
        for rank in (0, 1):
            self.place(rank)
        self.actors[0].answer("free_port", "4711")
        begun = Begun(pid=7, since=1).model_dump_json()
        return [Order.model_validate_json(actor.answer("start", begun)[0]) for actor in self.actors]

    def end(self, rank: int, code: int, how: str = "") -> None:
        self.actors[rank].answer("wait", Ended(code=code, how=how).model_dump_json())

    def wait(self, seconds: float) -> int | None:
        """So much later; what is due has happened, and the gang was looked at."""
        self.time += seconds
        due, self._due = self._due, []
        for at, action in due:
            assert at <= self.time
            action()
        return self.gang.poll()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_ranks_are_started_when_all_of_them_have_a_place_and_find_each_other_at_that_of_rank_0(cluster: Cluster) -> None:
    assert cluster.gang.waits_for() == "a node with 1 CPU for rank 0 of 2; a node with 1 CPU for rank 1 of 2"
    cluster.place(0)
    assert cluster.gang.waits_for() == "a node with 1 CPU for rank 1 of 2"
    assert not cluster.actors[0].was_asked("free_port")
    cluster.place(1)
    assert cluster.gang.waits_for() == ""
    cluster.actors[0].answer("free_port", "4711")
    orders = [Order.model_validate_json(actor.answer("start", Begun(pid=7, since=1).model_dump_json())[0]) for actor in cluster.actors]
    for rank, order in enumerate(orders):
        assert order.environment == {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.0", "MASTER_PORT": "4711"
        }  # fmt: skip
    assert [(order.spec.source, order.spec.rank, order.spec.token) for order in orders] == [("trainer", 0, "t"), ("trainer", 1, "t-rank1")]
    assert [order.spec.log_name for order in orders] == ["trainer", "trainer-rank1"]
    assert cluster.gang.poll() is None


def test_the_trainer_has_ended_in_order_when_all_ranks_have(cluster: Cluster) -> None:
    cluster.start()
    cluster.end(1, 0)
    assert cluster.wait(10 * ENDS_S) is None, "rank 0 told it to end, and takes its time"
    cluster.end(0, 0)
    assert cluster.gang.poll() == 0
    assert not any(actor.was_asked("kill") for actor in cluster.actors)


def test_a_rank_that_dies_takes_the_others_along_if_they_do_not_notice(cluster: Cluster) -> None:
    cluster.start()
    cluster.actors[1].answer("wait", Gone("it was killed"))
    assert cluster.wait(0.1) is None, "nobody has seen yet that nothing of it is left"
    cluster.swept[0][1](Said(Left(pids=()).model_dump_json()))
    assert cluster.wait(0.1) is None
    assert cluster.wait(ENDS_S - 0.1) is None
    assert not cluster.actors[0].was_asked("kill")
    assert cluster.wait(0.2) is None
    assert cluster.actors[0].was_asked("kill")
    cluster.end(0, KILLED, "signal 9 on host-a")
    assert cluster.gang.poll() == KILLED
    told = cluster.gang.how_it_ended()
    assert told.startswith("rank 1 of 2: signal 9 on host-b")
    assert told.endswith("for its actor has died (it was killed); rank 0 of 2: signal 9 on host-a")


def test_ranks_that_say_why_they_end_are_heard(cluster: Cluster) -> None:
    cluster.start()
    cluster.end(1, 2, "exit code 2 on host-b: actor.lr is 0.002 there")
    assert cluster.wait(1.0) is None
    cluster.end(0, 2, "exit code 2 on host-a: rank 1 of 2 differs")
    assert cluster.gang.poll() == 2
    expected = "rank 0 of 2: exit code 2 on host-a: rank 1 of 2 differs; rank 1 of 2: exit code 2 on host-b: actor.lr is 0.002 there"
    assert cluster.gang.how_it_ended() == expected


def test_a_mistake_of_a_rank_that_rank_0_waits_for_is_the_trainers(cluster: Cluster) -> None:
    cluster.start()
    cluster.end(1, 2, "exit code 2 on host-b: no GPU")
    cluster.wait(0.0)
    cluster.wait(ENDS_S)
    cluster.end(0, KILLED, "signal 9 on host-a")
    assert cluster.gang.poll() == 2
    assert cluster.gang.how_it_ended() == "rank 1 of 2: exit code 2 on host-b: no GPU; rank 0 of 2: signal 9 on host-a"


def test_a_node_that_is_lost_holds_the_trainers_end_until_the_cluster_says_so(cluster: Cluster) -> None:
    cluster.start()
    cluster.end(0, 1, "exit code 1 on host-a: rank 1 has ended")
    assert cluster.wait(2 * ENDS_S) is None
    assert cluster.wait(ENDS_S) is None
    cluster.handles[1].look(frozenset("ab"))
    assert cluster.gang.poll() is None
    cluster.handles[1].look(frozenset("a"))
    assert cluster.gang.poll() == 1
    told = cluster.gang.how_it_ended()
    assert told.startswith("rank 0 of 2: exit code 1 on host-a: rank 1 has ended; rank 1 of 2: the node host-b")
    assert told.endswith("is gone")


def test_a_rank_that_is_lost_before_the_others_have_a_place_ends_them_at_once(cluster: Cluster) -> None:
    cluster.place(0)
    cluster.handles[0].look(frozenset("b"))
    cluster.wait(0.0)
    assert cluster.wait(0.0) == KILLED
    assert all(actor.ended for actor in cluster.actors)
    assert cluster.gang.how_it_ended().startswith("rank 0 of 2: the node host-a")


def test_a_gang_is_asked_to_end_through_rank_0_and_killed_as_a_whole(cluster: Cluster) -> None:
    cluster.start()
    cluster.gang.terminate()
    assert [actor.was_asked("terminate") for actor in cluster.actors] == [True, False]
    assert cluster.gang.kill()
    assert [actor.was_asked("kill") for actor in cluster.actors] == [True, True]


def test_a_gang_without_a_place_can_be_ended(cluster: Cluster) -> None:
    cluster.place(0)
    cluster.gang.terminate()
    assert cluster.gang.poll() is not None
    assert cluster.gang.waits_for() == ""
