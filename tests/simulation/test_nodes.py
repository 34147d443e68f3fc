"""Runs on a cluster that loses machines: at any time, at every arrow of a swing, with all that is on them or without their knowing.

More seeds: `python -m tests.simulation --nodes --seeds 10000`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bus.entry import Entry
from bus.events import (
    GenerationFinished,
    KillRequested,
    ReplicaLost,
    RunEnded,
    ServiceLost,
    StepDone,
    WeightsPublished,
    WeightsShared,
)
from bus.reach import Reach
from services.controller.replicas import Replicas
from services.trainer.kept import KEPT_CHECKPOINTS, KeptCheckpoints
from tests.cases.runs import of_kind, small_plan
from tests.simulation.check import run_on_nodes, run_world
from tests.simulation.nodes import Losses
from tests.simulation.plans import Faults
from tests.simulation.world import World

SHARDS = 6
SEEDS = 120
LEND = (
    "SwitchStarted", "YieldRequested", "DevicesYielded", "WakeRequested", "ReplicaAwake", "OpenRoutesRequested", "RoutesOpened",
    "SwitchDone",
)  # fmt: skip
BACK = (
    "CutRoutesRequested", "RoutesCut", "AbortRequested", "SleepRequested", "ReplicaAsleep", "ReloadRequested", "DevicesReloaded",
    "StepDone", "WeightsPublished",
)  # fmt: skip
PLAN = small_plan(total_steps=6, hybrid=("h0", "h1"), standalone=("s0", "s1"), policy="restless")


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_seed_holds_on_a_cluster_that_loses_machines(shard: int) -> None:
    count = SEEDS // SHARDS
    for seed in range(shard * count, (shard + 1) * count):
        try:
            run_on_nodes(seed)
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed}: {error}\nrerun with: python -m tests.simulation --first {seed} --seeds 1 --nodes --trace"
            ) from error


def lose_at(kind: str, victim: str, seed: int, cut_off: float) -> World:
    """A calm run, but that the machine of a service is lost right after the second event of a kind."""
    losses = Losses(count=3, most=1, aimed={kind: 2}, victim=victim, cut_off=cut_off)
    plan = PLAN.model_copy(update={"run": f"lose-{seed}"})
    return run_world(World(seed, plan, Faults(), losses))


@pytest.mark.parametrize("victim", ["trainer", "replica:s0", "rollouter", "controller"])
@pytest.mark.parametrize("kind", LEND + BACK)
def test_a_machine_lost_at_any_arrow_of_a_swing_costs_no_step(kind: str, victim: str) -> None:
    number = (LEND + BACK).index(kind)
    world = lose_at(kind, victim, number, cut_off=number % 2)
    entries = world.store.entries
    assert world.nodes.lost == 1
    assert [event.step for event in of_kind(entries, StepDone)] == list(range(1, PLAN.total_steps + 1)), "a step is missing, or done twice"
    assert of_kind(entries, RunEnded)[0].reason == "completed"
    lost = {event.service for event in of_kind(entries, ServiceLost)}
    gang = {"trainer", "replica:h0", "replica:h1"}
    assert victim in lost
    assert gang <= lost or not gang & lost, "the trainer and its hybrids are on one machine"


def test_weights_that_were_lost_with_a_machine_are_there_again_before_anybody_is_asked_to_load_them() -> None:
    """All on one machine of two: weights lie in its memory, and none of them is left when it is lost."""
    found = 0
    for seed in range(8):
        losses = Losses(count=2, most=1, aimed={"StepDone": 3}, victim="trainer")
        world = World(seed, PLAN.model_copy(update={"run": f"one-{seed}", "standalone": ()}), Faults(), losses)
        entries = run_world(world).store.entries
        (lost,) = [entry.position for entry in entries if isinstance(entry.event, StepDone)][2:3]
        newest = [entry.event for entry in entries[:lost] if isinstance(entry.event, WeightsPublished)][-1]
        again = [entry.event for entry in entries[lost:] if isinstance(entry.event, WeightsShared)]
        if newest.machine:
            found += 1
            assert newest.uri in {event.uri for event in again}
    assert found > 2


def lose_after_many_checkpoints(seed: int) -> World:
    """An operator asks for one after the other within a cycle; then the machine is lost in whose memory the weights are."""
    losses = Losses(count=2, most=1, aimed={"StepDone": 6}, victim="trainer", checkpoints=0.04)
    update = {"run": f"many-{seed}", "standalone": (), "trigger_parameter_sync_step": 7, "total_steps": 14}
    return run_world(World(seed, PLAN.model_copy(update=update), Faults(), losses))


def test_checkpoints_within_a_cycle_leave_what_lost_weights_are_made_again_from(monkeypatch: pytest.MonkeyPatch) -> None:
    again = 0
    for seed in range(6):
        entries = lose_after_many_checkpoints(seed).store.entries
        again += bool(of_kind(entries, WeightsShared))
    assert again > 0

    def newest_three(self: KeptCheckpoints) -> None:
        self.saved = self.saved[-KEPT_CHECKPOINTS:]

    monkeypatch.setattr(KeptCheckpoints, "_forget", newest_three)
    monkeypatch.setattr(KeptCheckpoints, "oldest", property(lambda self: self.saved[0] if len(self.saved) == KEPT_CHECKPOINTS else None))
    with pytest.raises(AssertionError, match=r"cannot be made again|skips from step"):
        list(map(lose_after_many_checkpoints, range(6)))


def test_answers_that_were_lost_with_a_machine_are_asked_for_again_elsewhere() -> None:
    reissued = 0
    for seed in range(4):
        entries = lose_at("RoutesOpened", "replica:s0", seed, 0.0).store.entries
        gone = {(entry.event.replica, entry.event.epoch): entry.position for entry in entries if isinstance(entry.event, ReplicaLost)}
        requests = [(entry.position, entry.event) for entry in entries if entry.event.kind == "GenerationRequested"]
        answered = {(event.request, event.attempt) for event in of_kind(entries, GenerationFinished)}
        for position, event in requests:
            lost = gone.get((event.replica, event.epoch))  # type: ignore[attr-defined]
            if lost is not None and position < lost and (event.request, event.attempt) not in answered:  # type: ignore[attr-defined]
                later = [other for _, other in requests if other.request == event.request and other.attempt > event.attempt]  # type: ignore[attr-defined]
                assert later, f"{event} was lost and never asked for again"
                reissued += 1
    assert reissued > 0


def test_a_predecessor_on_a_machine_that_the_cluster_lost_acts_on_until_it_is_fenced_and_nobody_minds() -> None:
    late = 0
    for seed in range(5):
        entries = lose_at("RoutesOpened", "replica:s0", seed, 1.0).store.entries
        gone: dict[str, int] = {}
        for entry in entries:
            if isinstance(entry.event, ServiceLost):
                gone[entry.event.service] = entry.event.epoch
            late += entry.source in gone and entry.epoch == gone[entry.source]
    assert late > 0, "nobody said anything after he was lost: the simulation lost its teeth"


def test_a_killed_replica_is_lost_only_after_its_exit_was_told() -> None:
    """KillRequested ▸ ServiceLost (the exit, or the cluster's word on its machine) ▸ ReplicaLost."""
    seen = 0
    for seed in range(12):
        told: set[tuple[str, int]] = set()
        asked: set[tuple[str, int]] = set()
        for entry in run_on_nodes(seed).store.entries:
            event = entry.event
            if isinstance(event, ServiceLost):
                told.add((event.service, event.epoch))
            elif isinstance(event, KillRequested):
                asked.add((event.replica, event.epoch))
            elif isinstance(event, ReplicaLost) and (event.replica, event.epoch) in asked:
                seen += 1
                assert (f"replica:{event.replica}", event.epoch) in told
    assert seen > 0


# --- planted bugs -----------------------------------------------------------------------------------------------------------------


def ask_for_what_cannot_be_read(patch: pytest.MonkeyPatch) -> None:
    """Replicas are asked to load weights that lie in another machine's memory."""
    patch.setattr(Reach, "can_read", lambda self, replica, weights: True)


def believe_that_a_lost_replica_serves(patch: pytest.MonkeyPatch) -> None:
    """The controller does not hear that a replica's machine is gone."""
    original = Replicas.apply

    def apply(self: Replicas, entry: Entry) -> None:
        if not isinstance(entry.event, ServiceLost):
            original(self, entry)

    patch.setattr(Replicas, "apply", apply)


PLANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    ask_for_what_cannot_be_read,
    believe_that_a_lost_replica_serves,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    monkeypatch.setattr("tests.simulation.world.MAX_TICKS", 5_000)
    assert any(failed(seed) for seed in range(200)), f"200 seeds did not find it: {plant.__doc__}"


def failed(seed: int) -> bool:
    """Any complaint counts."""
    try:
        run_on_nodes(seed)
    except Exception:  # noqa: BLE001
        return True
    return False
