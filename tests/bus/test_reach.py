"""Who can read which published weights, and who is asked to load them."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.entry import Entry
from bus.events import (
    Event,
    ReplicaAdded,
    RunPlanned,
    ServiceLost,
    ServiceStarted,
    WeightsApplied,
    WeightsPublished,
    WeightsShared,
    WeightUpdateRequested,
)
from bus.reach import Reach
from bus.requests import Requests
from bus.snapshot import freeze, thaw
from replay.sync_invariants import SyncInvariants
from services.controller.replicas import Replicas
from services.rollouter.core import RollouterCore
from services.rollouter.routes import Routes
from tests.cases.runs import small_plan


@dataclass
class Story:
    """A log as it is told."""

    reach: Reach = field(default_factory=Reach)
    routes: Routes = field(default_factory=lambda: Routes(Requests()))
    replicas: Replicas = field(default_factory=Replicas)
    rollouter: RollouterCore = field(default_factory=RollouterCore)
    invariants: SyncInvariants = field(default_factory=SyncInvariants)
    broken: list[str] = field(default_factory=list)
    position: int = 0

    def tell(self, source: str, *events: Event) -> None:
        for event in events:
            self.position += 1
            entry = Entry(self.position, source, 1, False, 0, 0, "", event)
            for fold in (self.reach, self.routes, self.replicas, self.rollouter):
                fold.apply(entry)
            self.broken += self.invariants.apply(entry)

    def start(self, name: str, machine: str, hybrid: bool = False) -> None:
        role = "hybrid" if hybrid else "standalone"
        started = ServiceStarted(code="", machine=machine, role="hybrid" if hybrid else "standalone")
        self.tell(f"replica:{name}", started, ReplicaAdded.model_validate({"replica": name, "role": role, "slots": 4, "seconds": 1.0}))

    def asked(self) -> str:
        """The replica that is asked next to load the newest weights."""
        route = self.routes.to_update(self.reach.newest)
        return "" if route is None else route.name


def published(version: int, machine: str) -> WeightsPublished:
    return WeightsPublished(
        version=version, revision=0, transport="shm" if machine else "file", uri=f"file:///w{version}", digest="d", num_bytes=1,
        seconds=0.0, machine=machine,
    )  # fmt: skip


SHARED = WeightsShared(version=0, revision=0, uri="file:///w0", num_bytes=1, seconds=0.0)


def plan() -> RunPlanned:
    return small_plan(standalone=("s0",), hybrid=("h0",))


def test_a_replica_on_another_machine_is_asked_to_load_weights_once_they_are_in_the_folder() -> None:
    story = Story()
    story.tell("supervisor", plan())
    story.start("s0", "B")
    story.start("h0", "B", hybrid=True)
    assert story.replicas.wakeable() == {"h0": 1}, "there is nothing to find yet"
    story.tell("trainer", published(0, "A"))
    assert (story.asked(), story.replicas.wakeable()) == ("", {})
    assert not isinstance(story.rollouter.decide(), WeightUpdateRequested)
    assert [weights.version for weights in story.reach.awaited([published(0, "A")])] == [0]
    story.tell("trainer", SHARED)
    assert (story.asked(), story.replicas.wakeable()) == ("s0", {"h0": 1})
    assert isinstance(story.rollouter.decide(), WeightUpdateRequested)
    assert not story.reach.awaited([published(0, "A")])


def test_one_that_shares_memory_with_the_weights_need_not_wait_and_one_that_comes_back_elsewhere_must() -> None:
    story = Story()
    story.tell("trainer", published(0, "A"))
    story.start("s0", "A")
    assert story.asked() == "s0"
    story.tell("supervisor", ServiceLost(service="replica:s0", epoch=1, restarting=True))
    assert story.reach.is_beyond("B"), "it may come back where it was"
    story.start("s0", "B")
    assert (story.asked(), story.reach.is_beyond("A"), story.reach.is_beyond("B")) == ("", True, False)
    story.tell("supervisor", ServiceLost(service="replica:s0", epoch=2, restarting=False))
    assert not story.reach.is_beyond("A")
    assert not story.reach.awaited([published(0, "A")])


def test_where_machines_are_not_known_everybody_can_read_everything() -> None:
    story = Story()
    story.start("s0", "")
    story.tell("trainer", published(0, "A"))
    assert (story.asked(), story.reach.is_beyond("A"), story.reach.is_beyond("")) == ("s0", False, False)
    story.start("s0", "B")
    story.tell("trainer", published(1, ""))
    assert story.asked() == "s0"


def test_sharing_one_version_says_nothing_of_the_next_also_in_a_snapshot() -> None:
    story = Story()
    story.start("s0", "B")
    story.tell("trainer", published(0, "A"), SHARED, published(1, "A"))
    reach = thaw(freeze(story.reach), Reach())
    assert reach.can_read("s0", published(0, "A"))
    assert not reach.can_read("s0", published(1, "A"))


def test_a_log_in_which_a_replica_is_told_of_what_it_cannot_read_is_found_out() -> None:
    story = Story()
    story.start("s0", "B")
    story.tell("trainer", published(0, "A"))
    told = WeightUpdateRequested(replica="s0", epoch=1, version=0, revision=0, uri="file:///w0", digest="d")
    story.tell("rollouter", told)
    assert story.broken == ["s0 on B was told of weights 0, which are in the memory of A"]
    story.tell("trainer", SHARED)
    story.tell("rollouter", told)
    story.tell("replica:s0", WeightsApplied(replica="s0", version=0, revision=0, seconds=0.0, transport="file"))
    assert len(story.broken) == 1
