"""C-45, C-51: throughput is that of all devices held, and every interval of every device is in exactly one class.

The measures are compared with a computation of its own, which goes through a log once for every interval between two entries.
"""

from __future__ import annotations

from functools import cache
from math import fsum

import pytest

from bus.entry import Draft, Entry
from bus.events import (
    BatchFormed,
    BoundaryOpened,
    CheckpointSaved,
    DeadlineMissed,
    DevicesReloaded,
    DevicesYielded,
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaAdded,
    ReplicaLost,
    RoutesCut,
    RoutesOpened,
    RunEnded,
    RunPlanned,
    ServiceLost,
    ServiceStarted,
    StepDone,
    StopRequested,
    SwitchDone,
    SwitchRejected,
    SwitchStarted,
    TrainGranted,
    WaitSamples,
    WeightsApplied,
    WeightsPublished,
    WeightUpdateRequested,
    YieldRefused,
    YieldRequested,
)
from bus.memory_log import MemoryStore
from services.monitor.measures import StepMeasures
from services.monitor.run_clock import RunClock
from services.monitor.summary import Summary, summarise
from tests.cases.runs import of_kind, small_plan
from tests.services.monitor.logs import batch, finished, give_back, lend, ready, request, step_done
from tests.simulation.check import run_world
from tests.simulation.plans import Faults
from tests.simulation.world import World

DEVICES = {"trainer": "2,3", "replica:s0": "0", "replica:s1": "1", "replica:h0": "2,3"}
OFFSETS_S = {"trainer": 500.0, "rollouter": -70.0, "replica:s0": 9_000.0, "replica:h0": 12.5}
"""How clocks are set: those of different services have nothing to do with each other."""


def written(planned: RunPlanned, *told: tuple[float, str, Event]) -> list[Entry]:
    """A log of (seconds, source, event), each caused by the one before."""
    store = MemoryStore.create(planned, at=0)
    epochs: dict[str, int] = {}
    for seconds, source, event in told:
        epochs[source] = epochs.get(source, 0) + isinstance(event, ServiceStarted)
        at = round((1e5 + seconds + OFFSETS_S.get(source, 0.0)) * 1e9)
        store.write(source, epochs[source], [Draft(event, derived=False, cause=len(store.entries), at=at)])
    return store.entries


def published(version: int, seconds: float = 0.0) -> WeightsPublished:
    return WeightsPublished(version=version, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=seconds)


def opened(*replicas: str) -> list[tuple[float, str, Event]]:
    """Everybody starts; the run opens at 0 and the trainer waits."""
    started = ServiceStarted(code="")
    told: list[tuple[float, str, Event]] = [(-9.0, source, started) for source in ("controller", "trainer", "rollouter")]
    for name in replicas:
        role = "hybrid" if name.startswith("h") else "standalone"
        added = ReplicaAdded.model_validate({"replica": name, "role": role, "slots": 4, "seconds": 0.0})
        told += [(-9.0, f"replica:{name}", started.model_copy(update={"role": role})), (-9.0, f"replica:{name}", added)]
    told += [(-1.0, "trainer", published(0)), (0.0, "controller", BoundaryOpened(version=0))]
    return [*told, (0.0, "controller", TrainGranted(version=0, reason="verdict")), (0.0, "trainer", WaitSamples(step=1, need=2, have=0))]


def lent_run() -> list[Entry]:
    """Sixty seconds on four devices: a step, a boundary with publication and checkpoint, a lend, its return, another step."""
    planned = small_plan(
        devices=DEVICES, standalone=("s0", "s1"), hybrid=("h0",), max_running_requests=2, total_steps=2, trigger_parameter_sync_step=1
    )
    return written(
        planned, *opened("s0", "s1", "h0"),
        (0.0, "rollouter", request(0, "s0")), (0.0, "rollouter", request(1, "s0")), (0.0, "rollouter", request(2, "s1")),
        (6.0, "replica:s0", finished(0, "s0", 30)), (6.0, "rollouter", ready(0)),
        (10.0, "replica:s0", finished(1, "s0", 50)), (10.0, "rollouter", ready(1)),
        (10.0, "trainer", batch(1, 0, 1)), (16.0, "trainer", step_done(1, is_boundary=True, train=6.0)),
        (19.0, "trainer", published(1, 3.0)), (19.0, "controller", lend(1, answers=1)), (19.0, "controller", YieldRequested(swing=1)),
        (23.0, "trainer", CheckpointSaved(step=1, version=1, position=1, uri="", digest="", seconds=4.0)),
        (24.0, "trainer", DevicesYielded(swing=1, seconds=1.0)),
        (26.0, "rollouter", RoutesOpened(swing=1, replicas=("h0",))),
        (26.0, "controller", SwitchDone(swing=1, target="rollout", replicas=("h0",))),
        (26.0, "rollouter", request(3, "h0", swing=1)), (40.0, "replica:h0", finished(3, "h0", 80)), (40.0, "rollouter", ready(3)),
        (42.0, "controller", give_back(2)), (43.0, "rollouter", RoutesCut(swing=2)),
        (45.0, "trainer", DevicesReloaded(swing=2, seconds=1.0)),
        (45.0, "controller", SwitchDone(swing=2, target="train")), (45.0, "controller", TrainGranted(version=1, reason="returned")),
        (50.0, "replica:s1", finished(2, "s1", 100)), (50.0, "rollouter", ready(2)),
        (50.0, "trainer", batch(2, 2, 3)), (58.0, "trainer", step_done(2, version=1, is_boundary=True, train=8.0)),
        (60.0, "controller", RunEnded(reason="stopped")),
    )  # fmt: skip


@cache
def crashed_run(seed: int) -> list[Entry]:
    """A simulated run in which services and replicas are killed all the time."""
    faults = Faults(crashes=6, crash_chance=0.02, engine_fails=0.05, answer_error=0.05, restarts=2)
    return run_world(World(seed, small_plan(standalone=("s0", "s1"), hybrid=("h0", "h1"), total_steps=6), faults)).store.entries


# --- C-45 ------------------------------------------------------------------------------------------------------------------------


def test_c45_throughput_is_that_of_every_device_held_whoever_holds_it() -> None:
    """30 + 50 + 80 + 100 tokens in 60 s on four devices; verl divided by the trainer's two."""
    summary = summarise(lent_run())
    assert (summary["tokens_generated"], summary["wall_seconds"], summary["device_seconds"]) == (260, 60.0, 240.0)
    assert summary["tokens_per_device_second"] == pytest.approx(260 / (60 * 4))


def test_c45_a_device_counts_for_the_time_that_it_was_held() -> None:
    """s1 is lost for good after 30 of 60 seconds, and h1 comes with a device of its own after 40."""
    planned = small_plan(
        devices={name: DEVICES[name] for name in ("trainer", "replica:s0", "replica:s1")}, standalone=("s0", "s1"), hybrid=()
    )
    h1 = ServiceStarted(code="", role="standalone")
    entries = written(
        planned, *opened("s0", "s1"), (0.0, "rollouter", request(0, "s0")),
        (30.0, "controller", ServiceLost(service="replica:s1", epoch=1, restarting=False)),
        (40.0, "controller", SwitchRejected(request=1, swing=0, reason="late")), (40.0, "replica:x9", h1),
        (60.0, "replica:s0", finished(0, "s0", 120)), (60.0, "controller", RunEnded(reason="stopped")),
    )  # fmt: skip
    summary = summarise(entries)
    assert summary["device_seconds"] == pytest.approx(2 * 60 + 60 + 30 + 20)
    assert summary["tokens_per_device_second"] == pytest.approx(120 / (2 * 60 + 60 + 30 + 20))


# --- C-51 ------------------------------------------------------------------------------------------------------------------------


def test_c51_every_interval_of_a_device_is_in_one_class() -> None:
    summary = Summary()
    for entry in lent_run():
        summary.apply(entry)
    found = {group.name: summary.devices.seconds(group) for group in summary.devices.groups}
    trainer = {"training": 6 + 8, "publishing": 3 + 2, "checkpoint": 4, "generating": 14, "swinging": 3 + 3, "waiting": 10 + 5, "idle": 2}
    assert found["2,3"] == trainer
    assert found["0"] == {"generating": 10, "idle": 50}
    assert found["1"] == {"generating": 50, "idle": 10}


def test_c51_a_checkpoint_that_is_written_while_a_swing_begins_is_a_checkpoint() -> None:
    """It was counted only while the devices were at home, so a run that lent at every boundary seemed to write none."""
    checkpoints = of_kind(lent_run(), CheckpointSaved)
    (trainer,) = (device for device in list_of(summarise(lent_run())["devices"]) if device["name"] == "2,3")
    assert dict_of(trainer["seconds"])["checkpoint"] == fsum(saved.seconds for saved in checkpoints) == 4.0


def test_c51_the_silence_before_an_operators_word_keeps_its_class() -> None:
    """His clock is not read, so when he spoke is not known: the trainer waited until then, and did not publish all along."""
    entries = written(
        small_plan(devices=DEVICES, hybrid=(), total_steps=4), *opened("s0"),
        (0.0, "rollouter", request(0, "s0")), (0.0, "rollouter", request(1, "s0")),
        (1.0, "replica:s0", finished(0, "s0", 30)), (1.0, "rollouter", ready(0)),
        (2.0, "replica:s0", finished(1, "s0", 30)), (2.0, "rollouter", ready(1)),
        (2.0, "trainer", batch(1, 0, 1)), (10.0, "trainer", step_done(1, train=8.0)),
        (10.0, "trainer", WaitSamples(step=2, need=2, have=0)),
        (0.0, "operator", StopRequested()), (40.0, "controller", DeadlineMissed(key="stall:9", seconds=30.0)),
        (43.0, "trainer", published(1, 3.0)), (44.0, "controller", RunEnded(reason="stopped")),
    )  # fmt: skip
    (trainer,) = (device for device in list_of(summarise(entries)["devices"]) if device["name"] == "2,3")
    seconds = dict_of(trainer["seconds"])
    assert (seconds["waiting"], seconds["publishing"], seconds["training"]) == (2.0 + 30.0, 3.0, 8.0)


@pytest.mark.parametrize("seed", range(12))
def test_c51_classes_add_up_to_the_wall_clock_of_each_device_to_the_nanosecond_also_with_crashes(seed: int) -> None:
    entries, summary = crashed_run(seed), Summary()
    for entry in entries:
        summary.apply(entry)
        if summary.opened_at is not None:
            for group in summary.devices.groups:
                group_since = summary.opened_at
                assert sum(group.nanoseconds.values()) == group.since - group_since or group.doing is None
    if summary.opened_at is None:
        return
    wall = summary.clock.now - summary.opened_at
    given_up = {lost.service.removeprefix("replica:") for lost in of_kind(entries, ServiceLost) if not lost.restarting}
    for group in summary.devices.groups:
        if not given_up & set(group.holders):
            assert sum(group.nanoseconds.values()) == wall, group


@pytest.mark.parametrize("seed", range(12))
def test_c51_a_calm_run_has_every_class_in_the_amount_that_a_naive_count_finds(seed: int) -> None:
    """Idle, busy, paused and swinging of each device, interval by interval, by code that shares nothing with the monitor's."""
    entries = run_world(World(seed, small_plan(policy="restless", hybrid=("h0",)), Faults())).store.entries
    summary = Summary()
    for entry in entries:
        summary.apply(entry)
    found = {
        group.holders: {name: round(s * 1e9) for name, s in summary.devices.seconds(group).items()} for group in summary.devices.groups
    }
    naive = naive_classes(entries)
    for kind in ("training", "generating", "swinging"):
        assert found["trainer", "h0"].get(kind, 0) == naive["trainer"].get(kind, 0), kind
    assert found[("s0",)].get("generating", 0) == naive["s0"].get("generating", 0)
    assert sum(found["trainer", "h0"].values()) == sum(naive["trainer"].values())


@pytest.mark.parametrize("seed", range(12))
def test_c51_the_run_takes_as_long_as_the_one_clock_of_a_simulated_world_says(seed: int) -> None:
    """Services are given clocks of their own by the monitor, as if each ran elsewhere; what that costs is the time of a reaction."""
    entries, summary = crashed_run(seed), Summary()
    for entry in entries:
        summary.apply(entry)
    began = [entry.at for entry in entries if isinstance(entry.event, BoundaryOpened)]
    if began:
        (ended,) = (entry.at for entry in entries if isinstance(entry.event, RunEnded))
        assert summary.wall_s == pytest.approx((ended - began[0]) / 1e9, rel=0.1)


def naive_classes(entries: list[Entry]) -> dict[str, dict[str, int]]:
    """(trainer's device, s0's device) -> class -> nanoseconds."""
    clock = RunClock()
    times = [clock.apply(entry) for entry in entries]
    first = next(index for index, entry in enumerate(entries) if isinstance(entry.event, BoundaryOpened))
    last = next(index for index, entry in enumerate(entries) if isinstance(entry.event, RunEnded))
    classes: dict[str, dict[str, int]] = {"trainer": {}, "s0": {}}
    for index in range(first, last):
        passed = times[index + 1] - times[index]
        for device, kind in naive_doing(entries[: index + 1]).items():
            classes[device][kind] = classes[device].get(kind, 0) + passed
    return classes


def naive_doing(past: list[Entry]) -> dict[str, str]:
    """What both devices do after these entries: read from the end backwards, each question on its own."""
    events = [entry.event for entry in past]
    swing = newest(events, SwitchStarted, SwitchDone, SwitchRejected)
    lent = isinstance(swing, SwitchDone) and swing.target == "rollout"
    started = newest(events, SwitchStarted)
    if isinstance(swing, SwitchRejected):
        lent = isinstance(started, SwitchStarted) and started.target == "train"
    home = not isinstance(newest(events, DevicesYielded, DevicesReloaded), DevicesYielded)
    asked = isinstance(newest(events, YieldRequested, YieldRefused, DevicesYielded), YieldRequested)
    step = newest(events, StepDone, WeightsPublished)
    publishing = home and isinstance(step, StepDone) and step.is_boundary and not asked
    writing = home and count(events, WeightsPublished) - 1 > count(events, CheckpointSaved)
    training = home and count(events, BatchFormed) > count(events, StepDone)
    if lent:
        trainer = "generating" if in_flight(events, "h0") else "other"
    elif publishing or writing or training:
        trainer = "training" if training and not publishing and not writing else "other"
    else:
        trainer = "swinging" if isinstance(swing, SwitchStarted) else "other"
    alone = newest([event for event in events if getattr(event, "replica", "s0") == "s0"], WeightUpdateRequested, WeightsApplied)
    updating = isinstance(alone, WeightUpdateRequested)
    return {"trainer": trainer, "s0": "generating" if in_flight(events, "s0") and not updating else "other"}


def count(events: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


def newest(events: list[Event], *kinds: type[Event]) -> Event | None:
    """Rejections of requests (swing 0) end no swing."""
    return next((event for event in reversed(events) if isinstance(event, kinds) and getattr(event, "swing", None) != 0), None)


def in_flight(events: list[Event], replica: str) -> int:
    asked = {(e.request, e.attempt) for e in events if isinstance(e, GenerationRequested) and e.replica == replica}
    return len(asked - {(e.request, e.attempt) for e in events if isinstance(e, GenerationFinished)})


# --- the measures against a computation of its own -------------------------------------------------------------------------------


def test_utilisation_is_the_busy_share_of_the_capacity_as_it_was_in_each_interval() -> None:
    """s0 and s1 have two slots each, h0 has two slots from 26 to 43: its two devices weigh twice."""
    summary = summarise(lent_run())
    standalone = (2 * 6 + 1 * 4) / 2 + 50 / 2
    hybrid = 14 / 2
    assert summary["rollout_resource_utilization"] == pytest.approx((standalone + 2 * hybrid) / (2 * 60 + 2 * 17))
    assert summary["train_resource_utilization"] == pytest.approx(14 / (60 - 6 - 16))
    assert summary["resource_utilization"] == pytest.approx((2 * 14 + standalone + 2 * hybrid) / 240)


def test_a_lend_costs_both_its_swings_and_gains_what_the_others_would_have_needed_for_its_tokens() -> None:
    (there, back) = list_of(summarise(lent_run())["swings"])
    assert (there["seconds"], back["seconds"], there["cost_seconds"], there["lent_seconds"]) == (7.0, 3.0, 10.0, 16.0)
    assert there["lent_tokens"] == 80
    rate = (30 + 50 + 100) / 50  # a standalone replica generates from 0 to 50
    assert there["gain_seconds"] == pytest.approx(80 / rate)


@pytest.mark.parametrize("seed", range(10))
def test_the_windows_of_all_steps_make_up_the_whole(seed: int) -> None:
    """What the steps' measures add up to is what the summary says of the time up to the last step."""
    entries, summary, measures = crashed_run(seed), Summary(), StepMeasures()
    told, at_last_step = [], None
    for entry in entries:
        summary.apply(entry)
        measured = measures.take(entry, summary)
        if measured is not None:
            told.append(measured)
            at_last_step = (summary.wall_s, summary.totals(), summary.tokens_generated)
    if at_last_step is None:
        return
    wall, totals, _ = at_last_step
    assert [measured.step for measured in told] == list(range(1, len(told) + 1))
    assert fsum(measured.values["perf/time_per_step"] for measured in told) == pytest.approx(wall)
    for measured in told:
        if "time/training" in measured.values:
            assert fsum(value for name, value in measured.values.items() if name.startswith("time/")) == pytest.approx(1.0)
    assert totals.held == pytest.approx(fsum(totals.classes.values()))


def test_no_time_is_lost_when_a_replica_or_the_controller_is() -> None:
    """The controller is silent from 10 to 50, and another one goes on; s0 is lost at 20 and back at 40."""
    planned = small_plan(devices={"trainer": "1", "replica:s0": "0"}, standalone=("s0",), hybrid=(), max_running_requests=2)
    started = ServiceStarted(code="", role="standalone")
    entries = written(
        planned, *opened("s0"), (0.0, "rollouter", request(0, "s0")),
        (10.0, "controller", SwitchRejected(request=1, swing=0, reason="late")),
        (20.0, "rollouter", ServiceLost(service="replica:s0", epoch=1, restarting=True)), (40.0, "rollouter", ready(7)),
        (40.0, "replica:s0", started), (50.0, "rollouter", ready(8)), (50.0, "controller", ServiceStarted(code="")),
        (50.0, "controller", ReplicaLost(replica="s0", epoch=1)), (60.0, "controller", RunEnded(reason="stopped")),
    )  # fmt: skip
    summary = Summary()
    for entry in entries:
        summary.apply(entry)
    found = {group.holders: summary.devices.seconds(group) for group in summary.devices.groups}
    assert found[("s0",)] == {"generating": 20.0, "starting": 20.0, "lost": 20.0}
    assert found["trainer",] == {"waiting": 60.0}


def list_of(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def dict_of(value: object) -> dict[str, float]:
    assert isinstance(value, dict)
    return value
