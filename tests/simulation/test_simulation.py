"""2,000 seeds hold; planted bugs are found; tampered logs are found. More seeds: `make simulate SEEDS=100000`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from bus import chain
from bus.books import Books
from bus.codec import encode
from bus.core import Core
from bus.entry import Entry
from bus.events import Event, GenerationRequested, PolicyAttached, ReplicaLost, RoutesCut, SampleDropped, ServiceStarted, SettingChanged
from bus.requests import Outcome, Requests
from replay.differences import Report
from services.controller.replicas import Replicas
from services.controller.swing import Swing
from services.rollouter.routes import Routes
from services.trainer.core import TrainerCore
from tests.simulation.check import run_seed, verify_log
from tests.simulation.replicas import SimReplica
from tests.simulation.services import OTHER_CODE
from tests.simulation.world import World

SEEDS = 2_000
SHARDS = 20


def seed_failure(seed: int) -> str | None:
    """What goes wrong in a seed, if anything."""
    try:
        run_seed(seed)
    except AssertionError as error:
        return f"seed {seed}: {error}\nrerun with: python -m tests.simulation --first {seed} --seeds 1 --trace"
    return None


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_seed_ends_with_invariants_books_and_decisions_intact(shard: int) -> None:
    count = SEEDS // SHARDS
    for seed in range(shard * count, (shard + 1) * count):
        failure = seed_failure(seed)
        assert failure is None, failure


def test_seeds_hold_when_each_decision_is_appended_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then whoever dies may have said a part of what followed from one entry, and others come in between."""
    monkeypatch.setattr("bus.host.MAX_TOGETHER", 1)
    failures = [failure for seed in (*range(60), 1333) if (failure := seed_failure(seed)) is not None]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("policy", ["separate_async", "predictive"])
def test_seeds_hold_under_policies_that_look_further(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """Seeds of their own: one more name to draw from would make all others other runs."""
    monkeypatch.setattr("tests.simulation.plans.POLICIES", (policy,))
    monkeypatch.setattr("tests.simulation.world.POLICIES", (policy, "default"))
    for seed in range(40):
        failure = seed_failure(seed)
        assert failure is None, failure


# --- a simulation that cannot find a bug would prove nothing ----------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def forget_the_reload_barrier(patch: pytest.MonkeyPatch) -> None:
    """Devices are taken back while a replica is still on them."""
    patch.setattr(Replicas, "is_off_devices", lambda self, name, epoch: True)


def yield_with_a_batch(patch: pytest.MonkeyPatch) -> None:
    """The trainer leaves its devices with a batch formed."""
    patch.setattr(TrainerCore, "_must_stay", lambda self: False)


def keep_routing_after_the_cut(patch: pytest.MonkeyPatch) -> None:
    """The rollouter says that routes are cut and goes on using them (C-33)."""
    original = Routes.apply
    patch.setattr(Routes, "apply", lambda self, entry: None if isinstance(entry.event, RoutesCut) else original(self, entry))


def ignore_lost_replicas(patch: pytest.MonkeyPatch) -> None:
    """Requests of a dead replica are waited for (C-38)."""
    original = Requests.apply
    patch.setattr(Requests, "apply", lambda self, entry: [] if isinstance(entry.event, ReplicaLost) else original(self, entry))


def wait_for_requests_that_land_late(patch: pytest.MonkeyPatch) -> None:
    """A request that lands after the loss of its replica is waited for."""
    original = Requests.apply

    def apply(self: Requests, entry: Entry) -> list[Outcome]:
        if not isinstance(entry.event, GenerationRequested):
            return original(self, entry)
        gone, self.gone = self.gone, {}
        try:
            return original(self, entry)
        finally:
            self.gone = gone

    patch.setattr(Requests, "apply", apply)


def believe_a_wake(patch: pytest.MonkeyPatch) -> None:
    """Routes are opened without waiting for the replicas."""
    patch.setattr(Swing, "_settled", lambda self, name, epoch, replicas: True)


def rebuild_in_log_order(patch: pytest.MonkeyPatch) -> None:
    """A successor applies its predecessor's decisions where they lie in the log, not right after their cause."""

    def rebuild(core: Core, entries: list[Entry], decisions: list[Entry] | None = None, after: int = 0) -> int:
        for entry in entries:
            if not (entry.derived and entry.source == core.source and entry.cause <= after):
                core.apply(entry)
        return entries[-1].position

    patch.setattr("tests.simulation.services.rebuild", rebuild)
    patch.setattr("tests.simulation.services.rebuild_in_order", rebuild)


def forget_what_a_snapshot_holds(patch: pytest.MonkeyPatch) -> None:
    """A successor applies decisions again that its predecessor's snapshot holds already."""

    def rebuild(core: Core, entries: list[Entry], decisions: list[Entry], after: int) -> int:
        for entry in entries:
            core.apply(entry)
        return entries[-1].position

    patch.setattr("tests.simulation.services.rebuild_in_order", rebuild)


def keep_the_planned_limit(patch: pytest.MonkeyPatch) -> None:
    """Samples are started under the staleness limit that was planned, whatever it was lowered to on the live run."""
    original = Books.apply

    def apply(self: Books, event: Event) -> None:
        if not (isinstance(event, SettingChanged) and event.name == "staleness_threshold"):
            original(self, event)

    patch.setattr(Books, "apply", apply)


def keep_what_is_to_be_aborted(patch: pytest.MonkeyPatch) -> None:
    """A replica takes weights with answers in flight that it was to end first."""
    patch.setattr(SimReplica, "_end_all", lambda self, cause: self._keep_all())


PLANTS: list[Plant] = [
    forget_the_reload_barrier,
    yield_with_a_batch,
    keep_routing_after_the_cut,
    ignore_lost_replicas,
    wait_for_requests_that_land_late,
    believe_a_wake,
    rebuild_in_log_order,
    forget_what_a_snapshot_holds,
    keep_the_planned_limit,
    keep_what_is_to_be_aborted,
]
FOUND_BY = {"rebuild_in_log_order": 882, "wait_for_requests_that_land_late": 157}
"""A seed that finds it, where the first ones do not: to begin there saves a minute, and is all the same if the seeds' runs change."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    monkeypatch.setattr("tests.simulation.world.MAX_TICKS", 5_000)
    first = FOUND_BY.get(plant.__name__, 0)
    assert any(failed(seed) for seed in (*range(first, SEEDS), *range(first))), f"{SEEDS} seeds did not find it: {plant.__doc__}"


def failed(seed: int) -> bool:
    """Any complaint counts: a broken invariant, a stuck run, or a core that cannot go on."""
    try:
        run_seed(seed)
    except Exception:  # noqa: BLE001
        return True
    return False


# --- tampering --------------------------------------------------------------------------------------------------------------------


def honest_log(seed: int) -> list[Entry]:
    world = World(seed)
    world.run()
    return world.store.entries


def rechain(entries: list[Entry]) -> list[Entry]:
    """A forger who also recomputes the chain."""
    forged: list[Entry] = []
    for entry in entries:
        previous = forged[-1].chain if forged else chain.GENESIS
        link = chain.link(
            previous, entry.position, entry.event.kind, entry.event.schema_version, entry.source, entry.epoch, entry.derived,
            entry.cause, entry.at, encode(entry.event),
        )  # fmt: skip
        forged.append(entry._replace(chain=link))
    return forged


def changed_fields(event: Event) -> Event | None:
    """The event with one whole number of it changed."""
    for name, value in event.__dict__.items():
        if isinstance(value, int) and not isinstance(value, bool):
            return event.model_copy(update={name: value + 1})
    return None


def tamper(entries: list[Entry], how: str, random: Random) -> tuple[list[Entry], int]:
    """A tampered copy, and the position (or that after it) where it was done."""
    forged = list(entries)
    if how == "cut tail":
        cut = random.randint(1, 5)
        return forged[:-cut], len(forged) - cut
    index = random.choice([index for index in range(1, len(forged) - 1) if can_be_tampered(forged[index], how)])
    entry = forged[index]
    if how in ("decision", "fact"):
        event = changed_fields(entry.event)
        assert event is not None
        forged[index] = entry._replace(event=event)
    elif how == "epoch":
        forged[index] = entry._replace(epoch=entry.epoch + 1)
    elif how == "cause":
        forged[index] = entry._replace(cause=max(0, entry.cause - 1) if entry.cause else 1)
    elif how == "removed":
        del forged[index]
    elif how == "swapped":
        forged[index], forged[index + 1] = forged[index + 1], forged[index]
    return forged, entry.position


def can_be_tampered(entry: Entry, how: str) -> bool:
    """For changed fields: it is a decision, or a fact, with a number in it."""
    derived = {"decision": True, "fact": False}.get(how)
    return derived is None or (entry.derived == derived and changed_fields(entry.event) is not None)


def found_at(report: Report, position: int) -> bool:
    return any(abs(difference.position - position) <= 1 for difference in report.differences)


@pytest.mark.parametrize("how", ["decision", "fact", "epoch", "cause", "removed", "swapped", "cut tail"])
@pytest.mark.parametrize("seed", [seed for seed in range(30) if len(honest_log(seed)) > 40][:12])
def test_a_tampered_log_is_found_and_the_place_named(how: str, seed: int) -> None:
    entries = honest_log(seed)
    forged, position = tamper(entries, how, Random(seed))
    report = verify_log(forged, entries[-1].chain)
    assert not report.passed
    assert found_at(report, position), [str(difference) for difference in report.differences]


def is_of_one_code(entries: list[Entry]) -> bool:
    """All of it, and more than a few entries of a run that failed at once."""
    return len(entries) > 40 and not any(
        isinstance(entry.event, ServiceStarted | PolicyAttached) and entry.event.code == OTHER_CODE for entry in entries
    )


@pytest.mark.parametrize("seed", [seed for seed in range(20) if is_of_one_code(honest_log(seed))])
def test_a_changed_decision_is_found_even_when_the_forger_recomputes_the_chain(seed: int) -> None:
    entries = honest_log(seed)
    forged, _ = tamper(entries, "decision", Random(seed))
    assert not verify_log(rechain(forged)).passed


def test_decisions_of_other_code_are_listed_apart_and_do_not_fail() -> None:
    reports = [verify_log(honest_log(seed)) for seed in range(60)]
    assert all(report.passed for report in reports)
    assert any(report.other_code for report in reports), "no seed restarts under other code: the simulation lost its teeth"


def test_the_simulation_reaches_every_arrow() -> None:
    seen: dict[str, int] = {}
    for seed in range(150):
        for entry in honest_log(seed):
            seen[entry.event.kind] = seen.get(entry.event.kind, 0) + 1
            if isinstance(entry.event, SampleDropped):
                seen[f"dropped:{entry.event.reason}"] = 1
    for kind in ("YieldRefused", "SwitchRejected", "KillRequested", "ReplicaLost", "DeadlineMissed", "AbortRequested", "SampleMoved"):
        assert kind in seen, f"no seed reaches {kind}"
    assert {"dropped:failed", "dropped:filtered", "dropped:tail"} <= seen.keys()
