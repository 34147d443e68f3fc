"""summary.json: its numbers on a hand-written log, and what must hold on every log."""

from __future__ import annotations

import json
from functools import cache
from random import Random

import pytest

from bus.entry import Entry
from bus.events import CheckpointSaved, RunEnded, SampleDropped, SampleMoved, SampleStarted, TrainGranted, WaitSamples, WeightsPublished
from replay.invariants import Invariants
from services.monitor.summary import Summary, summarise
from tests.replay.recordings import simulated as simulate
from tests.services.monitor.logs import Story, batch, finished, plan, ready, request, step_done
from tests.simulation.world import World

SEEDS = range(40)
TICK = SampleMoved(sample=9, request="9.0", source="s9", reason="lost")
"""Nothing but time passes."""


@cache
def simulated(seed: int) -> World:
    """Of the same seed three tests look at the same log."""
    return simulate(seed)


def published(version: int) -> WeightsPublished:
    return WeightsPublished(version=version, revision=0, transport="file", uri="", digest="", num_bytes=1, seconds=1.0)


def small_run() -> Story:
    """Two steps in 20 seconds; one sample is dropped."""
    devices = {"trainer": "1", "replica:s0": "0,2", "replica:h0": "1"}
    story = Story(plan(total_steps=2, devices=devices, max_running_requests=4)).open(10.0)
    story.controller(10.0, TrainGranted(version=0, reason="verdict")).say("trainer", 10.0, WaitSamples(step=1, need=2, have=0))
    story.rollouter(10.0, *(SampleStarted(sample=sample, version=0) for sample in range(1, 6)), *(request(sample) for sample in range(6)))
    for sample in range(5):
        story.rollouter(11.0 + sample, TICK).replica("s0", finished(sample, num_tokens=10)).rollouter(
            11.0 + sample, ready(sample, num_tokens=10)
        )
        if sample == 1:
            story.say("trainer", 12.0, batch(1, 0, 1))
    story.say("trainer", 15.0, step_done(1, wait=4.0, train=3.0, reward=0.2), batch(2, 2, 3))
    story.rollouter(18.0, TICK).replica("s0", finished(5, num_tokens=4)).rollouter(18.0, ready(5))
    story.say("trainer", 20.0, step_done(2, is_boundary=True, wait=1.0, train=5.0, reward=0.6)).say("trainer", 22.0, published(1))
    story.say("trainer", 23.0, CheckpointSaved(step=2, version=1, position=1, uri="", digest="", seconds=1.0))
    return story.rollouter(26.0, SampleDropped(sample=5, reason="failed")).controller(30.0, RunEnded(reason="completed"))


def test_the_numbers_of_a_small_run() -> None:
    story = small_run()
    summary = summarise(story.entries)
    assert summary["run"] == "r"
    assert summary["ended"] == "completed"
    assert (summary["startup_seconds"], summary["wall_seconds"]) == (10.0, 20.0)
    assert (summary["steps"], summary["version"]) == (2, 1)
    assert (summary["reward_first_quarter"], summary["reward_last_quarter"]) == (0.2, 0.6)
    assert (summary["samples_started"], summary["samples_trained"], summary["samples_dropped"]) == (6, 4, 1)
    assert summary["samples_dropped_by_reason"] == {"failed": 1}
    assert (summary["samples_ready_at_end"], summary["samples_in_flight_at_end"]) == (1, 0)
    assert summary["staleness"] == {"min": 0, "mean": 0.0, "max": 0}
    assert (summary["tokens_generated"], summary["tokens_trained"], summary["tokens_per_second"]) == (54, 40, 2.7)
    assert (summary["wait_seconds"], summary["wait_seconds_per_step"], summary["wait_seconds_longest"]) == (5.0, 2.5, 4.0)
    assert summary["swings"] == []
    assert (summary["last_position"], summary["last_chain"]) == (len(story.entries), story.entries[-1].chain)


def test_utilisation_weighs_devices_and_the_slots_that_are_taken() -> None:
    """s0 has two cores and runs four requests at a time; of six one ends each second from the first on, the last one after eight."""
    summary = summarise(small_run().entries)
    trainer = {"training": 8.0, "publishing": 2.0, "checkpoint": 1.0, "waiting": 2.0, "idle": 7.0}
    assert summary["devices"] == [
        {"name": "1", "count": 1, "holders": ["trainer", "h0"], "seconds": trainer},
        {"name": "0,2", "count": 2, "holders": ["s0"], "seconds": {"generating": 8.0, "idle": 12.0}},
    ]
    taken = (4 + 4 + 4 + 3 + 2 + 3 * 1) / 4
    assert summary["train_resource_utilization"] == 8.0 / 20.0
    assert summary["rollout_resource_utilization"] == taken / 20.0
    assert summary["resource_utilization"] == pytest.approx((1 * 8.0 + 2 * taken) / 60.0)
    assert (summary["device_seconds"], summary["tokens_per_device_second"]) == (60.0, 54 / 60.0)
    assert summary["ready_samples"] == {"min": 2, "mean": 2.5, "max": 3}


def test_what_comes_after_the_end_changes_nothing_but_where_the_log_ends() -> None:
    story = small_run()
    before = summarise(story.entries)
    story.controller(90.0, RunEnded(reason="failed")).rollouter(95.0, SampleStarted(sample=6, version=0))
    assert summarise(story.entries) == before | {"last_position": len(story.entries), "last_chain": story.entries[-1].chain}


def test_a_log_that_never_opened_has_a_summary_without_numbers() -> None:
    summary = summarise(Story().entries)
    assert (summary["ended"], summary["wall_seconds"], summary["startup_seconds"]) == ("", 0.0, None)
    for name in ("reward_first_quarter", "staleness", "tokens_per_second", "resource_utilization", "swing_share", "wait_seconds_longest"):
        assert summary[name] is None, name
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_a_reward_that_is_no_number_is_null_in_the_summary() -> None:
    story = Story().open().rollouter(11.0, SampleStarted(sample=1, version=0), ready(0), ready(1))
    summary = summarise(story.trainer(batch(1, 0, 1), step_done(1, reward=float("nan"))).entries)
    assert summary["reward_last_quarter"] is None
    json.dumps(summary, allow_nan=False)


def test_summarising_nothing_is_possible() -> None:
    assert summarise([])["last_position"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_on_every_log_the_books_are_those_of_an_independent_fold(seed: int) -> None:
    entries = simulated(seed).store.entries
    fold = Invariants()
    for entry in entries:
        fold.apply(entry)
        if fold.ended is not None:
            break
    places = list(fold.place.values())
    summary = summarise(entries)
    assert summary["samples_started"] == len(places)
    assert summary["samples_trained"] == places.count("trained")
    assert summary["samples_dropped"] == sum(place.startswith("dropped") for place in places)
    assert summary["samples_ready_at_end"] == places.count("ready")
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


@pytest.mark.parametrize("seed", SEEDS)
def test_on_every_log_phases_add_up_to_the_seconds_of_their_swing(seed: int) -> None:
    summary = Summary()
    for entry in simulated(seed).store.entries:
        summary.apply(entry)
    for swing in summary.swings.all:
        if swing.seconds is not None:
            assert sum(swing.phases.values()) == pytest.approx(swing.seconds)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_summary_does_not_depend_on_how_the_clocks_of_incarnations_are_set(seed: int) -> None:
    entries = simulated(seed).store.entries
    random, offsets = Random(seed), dict[tuple[str, int], int]()

    def shifted(entry: Entry) -> Entry:
        offset = offsets.setdefault((entry.source, entry.epoch), random.randrange(10**12))
        return entry._replace(at=entry.at + offset)

    assert summarise([shifted(entry) for entry in entries]) == summarise(entries)
