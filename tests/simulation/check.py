"""Runs one seed and checks everything that must hold of its log."""

from __future__ import annotations

from collections.abc import Sequence

from bus.core import Core
from bus.entry import Entry
from bus.events import PolicyAttached, ReplicaLost, RunEnded
from bus.requests import Requests
from replay.core_check import Subject
from replay.differences import Report
from replay.invariants import Invariants
from replay.ledger import Ledger
from replay.lookahead import Attached
from replay.verify import verify
from services.controller.core import ControllerCore
from services.policy.core import PolicyCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore
from tests.simulation.restless import make_policy
from tests.simulation.services import CODE
from tests.simulation.world import World


def policy_core(attached: PolicyAttached | None) -> Core:
    """The policy that was attached; before any was, the core of one that only listens."""
    name = "static_fully_async" if attached is None else attached.name
    return PolicyCore(make_policy(name, {} if attached is None else attached.params))


def shadow_core(attached: PolicyAttached | None) -> Core:
    """The same for one that only watches."""
    name = "static_fully_async" if attached is None else attached.name
    return PolicyCore(make_policy(name, {} if attached is None else attached.params), "shadow")


SUBJECTS = [
    Subject("trainer", lambda _: TrainerCore(), lambda _: CODE),
    Subject("rollouter", lambda _: RollouterCore(), lambda _: CODE),
    Subject("controller", lambda _: ControllerCore(), lambda _: CODE),
    Subject("policy", policy_core, lambda _: CODE),
]


def subjects_of(attached: Sequence[Attached]) -> list[Subject]:
    """The cores of a run, and of the shadows that watched it."""
    shadows = dict.fromkeys(source for source, event in attached if event.mode == "shadow")
    return [*SUBJECTS, *(Subject(source, shadow_core, lambda _: CODE) for source in shadows)]


def verify_log(entries: list[Entry], last_chain: str | None = None) -> Report:
    """`replay verify` on a simulated log."""
    return verify(entries, SUBJECTS, last_chain)


def run_seed(seed: int) -> World:
    """Simulates a seed; raises AssertionError naming what broke."""
    return run_world(World(seed))


def run_world(world: World) -> World:
    """Runs a world to its end and checks decisions, chain, invariants and books; raises AssertionError naming what broke."""
    world.run()
    entries = world.store.entries
    report = verify_log(entries, entries[-1].chain)
    assert report.passed, "\n".join(map(str, report.differences[:5]))
    check_books(entries)
    check_requests(entries)
    return world


def check_requests(entries: list[Entry]) -> None:
    """Nobody waits for what was sent to an incarnation that is gone, whichever of the two stands first in the log (C-38)."""
    requests, gone = Requests(), dict[str, int]()
    for entry in entries:
        requests.apply(entry)
        if isinstance(entry.event, ReplicaLost):
            gone[entry.event.replica] = max(entry.event.epoch, gone.get(entry.event.replica, 0))
    waited_for = [request for waiting in requests.open.values() for request in waiting.values()]
    assert all(request.epoch > gone.get(request.replica, 0) for request in waited_for), waited_for


def check_books(entries: list[Entry]) -> None:
    """Every sample is in one place, and the core's books say the same as the independent fold and as the ledger."""
    fold, trainer, ledger = Invariants(), TrainerCore(), Ledger()
    for entry in entries:
        fold.apply(entry)
        ledger.apply(entry)
        trainer.books.apply(entry.event)
    assert isinstance(fold.ended, RunEnded)
    places = list(fold.place.values())
    books = trainer.books
    assert books.trained == places.count("trained"), (books.trained, places)
    assert len(books.ready) == places.count("ready")
    assert len(books.in_flight) == places.count("in flight")
    assert sum(books.dropped.values()) == sum(place.startswith("dropped") for place in places)
    assert len(places) == books.started
    assert ledger.balanced, [str(fault) for fault in ledger.faults]
