"""Any position of a recording: the state there, found from the nearest snapshot, is the one that the entries give."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from bus.core import Core
from bus.entry import Entry
from bus.errors import ConfigError, CoreError
from bus.events import PolicyAttached, StepDone
from bus.host import own
from bus.recording import FILE_NAME
from bus.snapshot import freeze
from replay.pattern import Pattern
from replay.travel import Travel
from services.policy.core import PolicyCore
from tests.replay.recordings import execute, positions, save, simulated, simulated_with
from tests.simulation.check import subjects_of
from tests.simulation.world import World

EVERY = 50
SEEDS = (3, 7, 10, 14, 22)
"""Among them runs with crashes, restarts under other code and swapped policies."""


def look(folder: Path) -> Travel:
    return Travel.open(folder, subjects=subjects_of, every=EVERY)


def expected(source: str, entries: Sequence[Entry], position: int) -> Core:
    """By the definition: all entries up to there, and all decisions on them right after their cause, wherever they stand."""
    of_policies = [(entry.source, entry.event) for entry in entries if isinstance(entry.event, PolicyAttached)]
    subject = next(subject for subject in subjects_of(of_policies) if subject.source == source)
    attached = [entry.event for entry in entries[:position] if isinstance(entry.event, PolicyAttached) and entry.source == source]
    core = subject.make(attached[-1] if attached else None)
    answers: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.derived and entry.source == source:
            answers.setdefault(entry.cause, []).append(entry)
    for entry in entries[:position]:
        if not (entry.derived and entry.source == source):
            core.apply(entry)
        for answer in answers.get(entry.position, ()):
            core.apply(own(core, answer.event, entry.position))
    return core


def all_equal(travel: Travel, entries: Sequence[Entry], position: int) -> Iterator[str]:
    """Sources whose state is not the expected one."""
    for source, core in travel.cores(position, travel.sources).items():
        if freeze(core) != freeze(expected(source, entries, position)):
            yield f"{source} at {position}"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_state_is_that_of_the_entries_whichever_way_one_comes(tmp_path: Path, seed: int) -> None:
    world, random = simulated(seed), Random(seed)
    entries = world.store.entries
    save(tmp_path, world.store)
    places = [len(entries), 1, *(random.randint(1, len(entries)) for _ in range(10))]
    with look(tmp_path) as travel:
        assert [wrong for place in places for wrong in all_equal(travel, entries, place)] == []
    with look(tmp_path) as travel:
        assert [wrong for place in sorted(places) for wrong in all_equal(travel, entries, place)] == []
    for place in places:
        with look(tmp_path) as travel:
            assert list(all_equal(travel, entries, place)) == []


@pytest.fixture(scope="module")
def world() -> World:
    return simulated_with("SwitchDone", "WaitSamples", "CheckpointSaved", crashes=False)


@pytest.fixture
def folder(tmp_path: Path, world: World) -> Path:
    return save(tmp_path / "run", world.store)


def kept(folder: Path) -> list[tuple[str, int]]:
    """(source, position) of the snapshots in a recording."""
    connection = sqlite3.connect(folder / FILE_NAME)
    rows = connection.execute("SELECT source, position FROM snapshots ORDER BY source, position").fetchall()
    connection.close()
    return rows


def test_a_long_way_leaves_snapshots_behind_and_the_next_look_begins_there(folder: Path, world: World) -> None:
    last = len(world.store.entries)
    with look(folder) as travel:
        travel.cores(last, ("trainer",))
    assert kept(folder) == [("trainer", position) for position in range(EVERY, last + 1, EVERY)]
    # What is before the snapshot is not read again: nobody would notice that it is broken.
    execute(folder, "UPDATE entries SET body = x'c1' WHERE kind != 'PolicyAttached' AND position <= ?", last // EVERY * EVERY - 1)
    with look(folder) as travel:
        core = travel.cores(last, ("trainer",))["trainer"]
    assert freeze(core) == freeze(expected("trainer", world.store.entries, last))


def test_a_short_way_leaves_none(folder: Path) -> None:
    with look(folder) as travel:
        travel.cores(EVERY - 1, travel.sources)
    assert kept(folder) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE snapshots SET state = x'00ff'",
        "UPDATE snapshots SET code = 'other'",
        "UPDATE snapshots SET position = position + 1",
        "UPDATE snapshots SET source = 'controller'",
    ],
    ids=["damaged", "of other code", "of another log", "of another core"],
)
def test_a_snapshot_that_is_of_no_use_is_not_used(folder: Path, world: World, statement: str) -> None:
    last = len(world.store.entries)
    with look(folder) as travel:
        travel.cores(last, ("trainer",))
    execute(folder, statement)
    with look(folder) as travel:
        assert list(all_equal(travel, world.store.entries, last)) == []


def test_a_recording_that_cannot_be_written_to_is_looked_at_all_the_same(folder: Path, world: World) -> None:
    (folder / FILE_NAME).chmod(0o444)
    folder.chmod(0o555)
    try:
        with look(folder) as travel:
            assert list(all_equal(travel, world.store.entries, len(world.store.entries))) == []
    finally:
        folder.chmod(0o755)
    if os.geteuid() != 0:  # root writes where it likes
        assert kept(folder) == []


def test_the_policy_is_the_one_that_is_in_charge_there(tmp_path: Path) -> None:
    for seed in range(200):
        store = simulated(seed).store
        swaps = [e for e in store.entries if isinstance(e.event, PolicyAttached) and e.event.mode == "active"]
        if len({swap.event.name for swap in swaps}) > 1:  # type: ignore[attr-defined]
            break
    with look(save(tmp_path, store)) as travel:
        for swap in swaps:
            core = travel.cores(swap.position, ("policy",))["policy"]
            assert isinstance(core, PolicyCore)
            assert isinstance(swap.event, PolicyAttached)
            assert core.policy.name == swap.event.name
            assert travel.started("policy", swap.position) == swap


def test_a_step_is_found_and_one_that_is_not_there_is_named_with_those_that_are(folder: Path, world: World) -> None:
    steps = [entry for entry in world.store.entries if isinstance(entry.event, StepDone)]
    with look(folder) as travel:
        for entry in steps:
            assert travel.position_of_step(entry.event.step) == entry.position  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match=rf"step 99 is not in .*: it has steps 1 to {len(steps)}"):
            travel.position_of_step(99)


def test_a_pattern_is_found_after_a_position_and_only_there(folder: Path, world: World) -> None:
    entries = world.store.entries
    with look(folder) as travel:
        at, found = 0, []
        for _ in positions(entries, "SwitchStarted"):
            at = travel.find(Pattern.parse("SwitchStarted"), at)
            found.append(at)
        assert found == positions(entries, "SwitchStarted")
        with pytest.raises(ConfigError, match=r"no entry of .* after .* is like 'SwitchStarted'"):
            travel.find(Pattern.parse("SwitchStarted"), at)


def test_a_log_that_a_core_cannot_follow_is_an_error_that_says_between_which_entries(folder: Path, world: World) -> None:
    execute(folder, "DELETE FROM entries WHERE kind = 'BatchFormed'")
    with look(folder) as travel, pytest.raises(CoreError, match=r"trainer cannot follow this log between entries .*replay verify"):
        travel.cores(travel.last, ("trainer",))
