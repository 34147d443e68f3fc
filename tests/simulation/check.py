"""Runs one seed and checks everything that must hold of its log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from bus.core import Core
from bus.entry import Entry
from bus.events import (
    PolicyAttached,
    PolicyRefused,
    ReplicaLost,
    RunEnded,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
)
from bus.requests import Requests
from replay.core_check import Subject
from replay.differences import Report
from replay.invariants import Invariants
from replay.ledger import Ledger
from replay.lookahead import Attached
from replay.verify import verify
from services.controller.core import ControllerCore
from services.policy.core import PolicyCore, label_of
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore
from tests.simulation.nodes import draw_losses
from tests.simulation.restless import make_policy
from tests.simulation.services import CODE
from tests.simulation.world import World


def policy_core(attached: PolicyAttached | None) -> Core:
    """The policy that was attached; before any was, the core of one that only listens."""
    name = "static_fully_async" if attached is None else attached.name
    return PolicyCore(make_policy(name, {} if attached is None else attached.params))


def shadow_core(attached: PolicyAttached | None, source: str) -> Core:
    """The same for one that only watches."""
    name = "static_fully_async" if attached is None else attached.name
    return PolicyCore(make_policy(name, {} if attached is None else attached.params), "shadow", label_of(source))


SUBJECTS = [
    Subject("trainer", lambda _: TrainerCore(), lambda _: CODE),
    Subject("rollouter", lambda _: RollouterCore(), lambda _: CODE),
    Subject("controller", lambda _: ControllerCore(), lambda _: CODE),
    Subject("policy", policy_core, lambda _: CODE),
]


def subjects_of(attached: Sequence[Attached]) -> list[Subject]:
    """The cores of a run, and of the shadows that watched it."""
    shadows = dict.fromkeys(source for source, event in attached if event.mode == "shadow")
    return [*SUBJECTS, *(Subject(source, partial(shadow_core, source=source), lambda _: CODE) for source in shadows)]


def verify_log(entries: list[Entry], last_chain: str | None = None) -> Report:
    """`replay verify` on a simulated log."""
    attached = [(entry.source, entry.event) for entry in entries if isinstance(entry.event, PolicyAttached)]
    return verify(entries, subjects_of(attached), last_chain)


def run_seed(seed: int) -> World:
    """Simulates a seed; raises AssertionError naming what broke."""
    return run_world(World(seed))


def run_on_nodes(seed: int) -> World:
    """The same on a cluster that loses machines."""
    return run_world(World(seed, losses=draw_losses(Random(f"losses of {seed}"))))


def run_world(world: World) -> World:
    """Runs a world to its end and checks decisions, chain, invariants and books; raises AssertionError naming what broke."""
    world.run()
    entries = world.store.entries
    report = verify_log(entries, entries[-1].chain)
    assert report.passed, "\n".join(map(str, report.differences[:5]))
    check_books(entries)
    check_requests(entries)
    check_policies(entries)
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


def check_policies(entries: list[Entry]) -> None:
    """At each position exactly one policy counts, each boundary has at most one answer that decides, each request one outcome."""
    counts = chosen = 0
    late = {entry.event.request for entry in entries if isinstance(entry.event, SwitchRejected) and entry.event.reason == "late"}
    answers: dict[int, list[int]] = {}
    outcomes: dict[int, set[str]] = {}
    for position, _, epoch, _, _, _, _, event in entries:
        match event:
            case PolicyAttached(mode="active"):
                assert epoch > counts, f"epoch {epoch} attached at {position} after epoch {counts}"
                assert event.request >= chosen, f"at {position} the choice of {event.request} came back, after that of {chosen}"
                counts, chosen = epoch, event.request
                outcomes.setdefault(event.request, set()).add("attached")
            case PolicyAttached():
                outcomes.setdefault(event.request, set()).add("attached")
            case PolicyRefused():
                outcomes.setdefault(event.request, set()).add("refused")
            case SwitchRequested(answers=int(version)):
                assert epoch == counts, f"epoch {epoch} answered boundary {version} at {position}, epoch {counts} counts"
                answers.setdefault(version, []).append(position)
            case SwitchStarted(answers=int(version), reason="verdict") | TrainGranted(version=version, reason="verdict"):
                deciding = [given for given in answers.get(version, []) if given not in late]
                assert len(deciding) == 1, f"boundary {version}, decided at {position}, has the answers {deciding}"
            case _:
                pass
    assert all(len(given) == 1 for given in outcomes.values()), outcomes


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
