"""C-09, C-10, C-31 to C-34: what a swing must survive, and what it must never do."""

from __future__ import annotations

import pytest

from bus.entry import Entry
from bus.events import (
    AbortRequested,
    GenerationFinished,
    GenerationRequested,
    KillRequested,
    ReloadRequested,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaFailed,
    ReplicaLost,
    RoutesCut,
    RoutesOpened,
    ServiceLost,
    SwitchDone,
    SwitchRejected,
    SwitchStarted,
    WakeRequested,
    WeightsPublished,
)
from replay.invariants import Invariants
from tests.cases.runs import of_kind, positions, run_plan, small_plan
from tests.simulation.plans import Faults


@pytest.mark.parametrize("how", ["fail", "hang"])
@pytest.mark.parametrize("during", ["sleep", "abort"])
def test_c09_an_engine_that_raises_or_hangs_on_pause_is_killed_and_its_exit_verified_first(how: str, during: str) -> None:
    entries = run_plan(small_plan(standalone=(), total_steps=4), faults=Faults(engine_script={("h0", during): how}))
    killed, exited, lost = positions(entries, KillRequested)[0], positions(entries, ServiceLost)[0], positions(entries, ReplicaLost)[0]
    next_reload = min(position for position in positions(entries, ReloadRequested) if position > killed)
    assert killed < exited < lost < next_reload
    assert not any(isinstance(entry.event, ReplicaAsleep) and entry.epoch == 1 and killed < entry.position for entry in entries)


@pytest.mark.parametrize("seed", range(20))
def test_c10_overlapping_intents_are_serialised(seed: int) -> None:
    """A policy that asks for swings all the time: one runs at a time, the others are told that they cannot be followed."""
    entries = run_plan(small_plan(policy="restless", hybrid=("h0", "h1")), seed)
    running: int | None = None
    for entry in entries:
        if isinstance(entry.event, SwitchStarted):
            assert running is None, f"swing {entry.event.swing} started while {running} runs"
            running = entry.event.swing
        elif isinstance(entry.event, SwitchDone) or (isinstance(entry.event, SwitchRejected) and entry.event.swing):
            running = None
    assert {rejected.reason for rejected in of_kind(entries, SwitchRejected)} <= {"busy", "late", "not_home", "not_lent", "run_ended"}
    versions = [published.version for published in of_kind(entries, WeightsPublished)]
    assert versions == list(range(len(versions)))


def test_c31_a_replica_gets_no_request_before_it_is_fully_awake() -> None:
    entries = run_plan(small_plan(standalone=("s0",), policy_params={"deactivate_ratio": 1.0}))
    awake: dict[tuple[str, int], int] = {}
    for entry in entries:
        if isinstance(entry.event, ReplicaAwake):
            awake[entry.event.replica, entry.event.swing] = entry.position
        elif isinstance(entry.event, GenerationRequested) and entry.event.replica == "h0":
            assert ("h0", entry.event.swing) in awake, f"{entry.event.request} was sent to a replica that is not awake"
    assert awake, "nothing was lent"


def test_c31_a_replica_that_fails_to_wake_holds_nobody_up() -> None:
    """No retries into the gap: it is killed, and the swing is rolled back."""
    entries = run_plan(small_plan(policy_params={"deactivate_ratio": 1.0}), faults=Faults(engine_script={("h0", "wake"): "hang"}))
    assert "replica_failed" in {rejected.reason for rejected in of_kind(entries, SwitchRejected)}
    assert len(of_kind(entries, WakeRequested)) <= 1 + len(of_kind(entries, SwitchStarted))


@pytest.mark.parametrize("seed", range(10))
def test_c32_declared_and_reported_mode_agree_at_every_transition(seed: int) -> None:
    """Whoever is declared to serve has said that it is awake; whoever is declared home has nobody awake."""
    entries = run_plan(small_plan(hybrid=("h0", "h1"), policy_params={"deactivate_ratio": 1.0}), seed, Faults(engine_fails=0.1))
    awake: dict[str, None] = {}
    for entry in entries:
        match entry.event:
            case ReplicaAwake(replica=name):
                awake[name] = None
            case ReplicaAsleep(replica=name) | ReplicaLost(replica=name):
                awake.pop(name, None)
            case RoutesOpened(replicas=names):
                assert all(name in awake for name in names), f"{names} declared to serve, {list(awake)} awake"
            case SwitchDone(target="train"):
                assert not awake, f"declared home with {list(awake)} awake"
            case _:
                pass


def test_c32_a_log_that_declares_otherwise_is_found() -> None:
    entries = run_plan(small_plan(policy_params={"deactivate_ratio": 1.0}))
    forged = [entry for entry in entries if not isinstance(entry.event, ReplicaAsleep)]
    assert any("on the devices" in broken for broken in broken_invariants(forged))


def broken_invariants(entries: list[Entry]) -> list[str]:
    fold = Invariants()
    return [broken for entry in entries for broken in fold.apply(entry)]


@pytest.mark.parametrize("seed", range(20))
def test_c33_nothing_is_routed_between_cut_and_open_and_the_cut_comes_before_the_abort(seed: int) -> None:
    entries = run_plan(small_plan(hybrid=("h0", "h1"), policy_params={"deactivate_ratio": 1.0}), seed)
    opened, cut_swings = False, set()
    for entry in entries:
        match entry.event:
            case RoutesOpened():
                opened = True
            case RoutesCut(swing=swing):
                opened = False
                cut_swings.add(swing)
            case GenerationRequested(replica=name) if name in ("h0", "h1"):
                assert opened, f"{entry.event.request} was routed to {name} while routes are cut"
            case AbortRequested(reason="swing", swing=swing):
                assert swing in cut_swings, "aborted before routes were cut"
            case _:
                pass


@pytest.mark.parametrize("seed", range(10))
def test_c34_late_arrivals_do_not_keep_a_replica_awake(seed: int) -> None:
    """Between the cut and asleep a hybrid has at most one outcome for each request in flight at the cut, and gets no new one."""
    entries = run_plan(small_plan(policy_params={"deactivate_ratio": 1.0}, max_running_requests=8), seed)
    in_flight: dict[tuple[str, int], None] = {}
    closing = False
    for entry in entries:
        match entry.event:
            case GenerationRequested(replica="h0") as event:
                assert not closing, "a request arrived during the deactivation"
                in_flight[event.request, event.attempt] = None
            case GenerationFinished(replica="h0") as event:
                in_flight.pop((event.request, event.attempt), None)
            case RoutesCut():
                closing = True
            case ReplicaAsleep():
                assert not in_flight, f"asleep with {list(in_flight)} in flight"
                closing = False
            case _:
                pass
    assert not of_kind(entries, ReplicaFailed)
