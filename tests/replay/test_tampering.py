"""Whatever is done to a recording is found and named; an honest one passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from replay.differences import Difference, Report
from tests.replay.recordings import Body, change_body, check, execute, forge_chain, positions, save, simulated, simulated_with
from tests.simulation.world import World

BREAKS = "the chain breaks here: this entry or the one before was changed, removed or moved"


@pytest.fixture(scope="module", params=["calm", "crashes"])
def world(request: pytest.FixtureRequest) -> World:
    return simulated_with("SwitchDone", "SampleDropped", "TrainGranted", "RunEnded", crashes=request.param == "crashes")


@pytest.fixture
def folder(tmp_path: Path, world: World) -> Path:
    return save(tmp_path, world.store)


def found(report: Report, position: int, what: str) -> list[Difference]:
    """The differences at a position that say `what`; there must be some."""
    assert not report.passed
    here = [difference for difference in report.differences if difference.position == position and what in difference.what]
    assert here, "\n".join(map(str, report.differences))
    return here


@pytest.mark.parametrize("seed", range(60))
def test_an_honest_recording_passes(tmp_path: Path, seed: int) -> None:
    world = simulated(seed)
    report = check(save(tmp_path, world.store))
    assert report.passed, "\n".join(map(str, report.differences))
    assert report.entries == len(world.store.entries)
    assert report.decisions == sum(entry.derived for entry in world.store.entries)


def test_every_prefix_of_an_honest_recording_passes_when_no_summary_says_where_it_ends(tmp_path: Path, world: World) -> None:
    full = world.store.entries
    for length in range(1, len(full), 7):
        world.store.entries = full[:length]
        report = check(save(tmp_path / str(length), world.store, with_summary=False))
        world.store.entries = full
        assert report.passed, f"{length}: {report.differences[0]}"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("BatchFormed", "samples", [99]),
        ("TrainGranted", "version", 41),
        ("GenerationRequested", "max_new_tokens", 1_000),
        ("SampleStarted", "version", 7),
        ("RunEnded", "detail", "all is well"),
    ],
)
def test_a_changed_decision_is_named_with_both_sides_even_when_the_chain_was_forged(
    folder: Path, world: World, kind: str, field: str, value: object
) -> None:
    position = positions(world.store.entries, kind)[0]
    change_body(folder, position, lambda body: body.update({field: value}))
    found(check(folder), position, BREAKS)
    forge_chain(folder)
    report = check(folder)
    assert BREAKS not in [difference.what for difference in report.differences]
    cause = world.store.entries[position - 1].cause
    (difference, *_) = found(report, cause, f"{kind} is not what the core decides")
    assert repr(value).strip("[]") in difference.recorded
    assert difference.expected == repr(world.store.entries[position - 1].event)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("SampleReady", lambda body: body.update(mean_reward=1.0)),
        ("StepDone", lambda body: body["metrics"].update(loss=0.0)),
        ("WeightsPublished", lambda body: body.update(digest="0")),
        ("GenerationFinished", lambda body: body.update(num_tokens=body["num_tokens"] + 1)),
        ("ServiceStarted", lambda body: body.update(code="other")),
        ("RunPlanned", lambda body: body.update(seed=body["seed"] + 1)),
    ],
)
def test_a_changed_fact_is_found(folder: Path, world: World, kind: str, change: Callable[[Body], None]) -> None:
    for position in positions(world.store.entries, kind)[:3]:
        change_body(folder, position, change)
        found(check(folder), position, BREAKS)


@pytest.mark.parametrize("column", ["epoch", "cause", "at", "source", "derived", "version", "kind", "chain"])
def test_a_changed_envelope_is_found(folder: Path, world: World, column: str) -> None:
    position = positions(world.store.entries, "StepDone")[0]
    new = {"epoch": "epoch + 1", "cause": "cause - 1", "at": "at + 1", "derived": "1 - derived", "version": "version - 1"}
    execute(folder, f"UPDATE entries SET {column} = {new.get(column, chr(39) + 'TrainGranted' + chr(39))} WHERE position = ?", position)
    found(check(folder), position, BREAKS)


def test_a_changed_epoch_is_named_as_such_when_the_chain_was_forged(folder: Path, world: World) -> None:
    entry = next(entry for entry in world.store.entries if entry.source == "trainer" and entry.event.kind == "StepDone")
    execute(folder, "UPDATE entries SET epoch = epoch + 1 WHERE position = ?", entry.position)
    forge_chain(folder)
    found(check(folder), entry.position, f"written by epoch {entry.epoch + 1} while epoch {entry.epoch} held the service")


def test_a_changed_cause_is_named_as_such_when_the_chain_was_forged(folder: Path, world: World) -> None:
    entry = next(entry for entry in world.store.entries if entry.event.kind == "BatchFormed")
    execute(folder, "UPDATE entries SET cause = position WHERE position = ?", entry.position)
    forge_chain(folder)
    found(check(folder), entry.position, f"its cause {entry.position} is not an earlier entry")
    execute(folder, "UPDATE entries SET cause = 1 WHERE position = ?", entry.position)
    forge_chain(folder)
    found(check(folder), 1, "BatchFormed is not what the core decides")


def test_a_fact_in_the_name_of_another_service_is_named(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "StepDone")[0]
    execute(folder, "UPDATE entries SET source = 'rollouter' WHERE position = ?", position)
    found(check(folder), position, "rollouter emitted StepDone, which only trainer may emit")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_removed_entry_is_named_where_it_is_missing(folder: Path, world: World, share: float) -> None:
    position = 1 + int(share * len(world.store.entries))
    execute(folder, "DELETE FROM entries WHERE position = ?", position)
    found(check(folder), position + 1, f"position {position + 1} follows {position - 1}: an entry was removed")


def test_a_removed_entry_is_found_when_the_ones_after_it_moved_up(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "SampleReady")[0]
    execute(folder, "DELETE FROM entries WHERE position = ?", position)
    execute(folder, "UPDATE entries SET position = position - 1 WHERE position > ?", position)
    found(check(folder), position, BREAKS)
    forge_chain(folder)
    assert not check(folder).passed


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_swapped_neighbours_are_found(folder: Path, world: World, share: float) -> None:
    position = 1 + int(share * len(world.store.entries))
    for source, to in ((position, -1), (position + 1, position), (-1, position + 1)):
        execute(folder, "UPDATE entries SET position = ? WHERE position = ?", to, source)
    found(check(folder), position, BREAKS)


def test_a_tail_cut_from_the_table_is_found(folder: Path, world: World) -> None:
    last = len(world.store.entries)
    execute(folder, "DELETE FROM entries WHERE position > ?", last - 3)
    report = check(folder)
    found(report, last - 3, f"the recorder got to entry {last}: the tail was cut")
    found(report, last - 3, "the log ends elsewhere than its summary says: its tail was cut or changed")


def test_a_tail_cut_with_care_is_found_by_the_summary(folder: Path, world: World) -> None:
    last = len(world.store.entries) - 3
    execute(folder, "DELETE FROM entries WHERE position > ?", last)
    execute(folder, "UPDATE meta SET value = ? WHERE key = 'last_position'", str(last))
    execute(folder, "UPDATE meta SET value = ? WHERE key = 'last_chain'", world.store.entries[last - 1].chain)
    (difference,) = found(check(folder), last, "the log ends elsewhere than its summary says: its tail was cut or changed")
    assert (difference.recorded, difference.expected) == (world.store.entries[last - 1].chain, world.store.entries[-1].chain)


def test_an_entry_added_at_the_end_is_found(folder: Path, world: World) -> None:
    last = len(world.store.entries)
    execute(folder, "INSERT INTO entries SELECT position + 1, kind, version, source, epoch, derived, cause, at, chain, body FROM entries "
            "WHERE position = ?", last)  # fmt: skip
    found(check(folder), last + 1, BREAKS)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("kind = 'Nonsense'", "entry of unknown kind 'Nonsense'"),
        ("version = 9", "has schema 9, this version of swingshift reads up to 1"),
        ("body = x'c1'", "cannot be read"),
        ("body = x'90'", "cannot be read"),
        ("body = x'81a0'", "cannot be read"),
    ],
)
def test_an_entry_that_cannot_be_read_is_a_difference_and_the_rest_of_the_chain_is_checked(
    folder: Path, world: World, assignment: str, message: str
) -> None:
    position = len(world.store.entries) // 2
    execute(folder, f"UPDATE entries SET {assignment} WHERE position = ?", position)
    execute(folder, "UPDATE entries SET at = at + 1 WHERE position = ?", position + 5)
    report = check(folder)
    found(report, position, message)
    found(report, position, BREAKS)
    found(report, position + 5, BREAKS)
    assert report.entries == len(world.store.entries)
    assert {difference.position for difference in report.differences} == {position, position + 5}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("at = 'noon'", "its at is 'noon', int is expected; nothing after it was checked"),
        ("derived = 5", "its derived is 5, 0 or 1 is expected; nothing after it was checked"),
        ("body = 'text'", "its body is 'text', bytes is expected; nothing after it was checked"),
        ("source = CAST(x'ff' AS TEXT)", BREAKS),
    ],
)
def test_a_row_of_other_types_is_a_difference(folder: Path, world: World, assignment: str, message: str) -> None:
    position = len(world.store.entries) // 2
    execute(folder, f"UPDATE entries SET {assignment} WHERE position = ?", position)
    found(check(folder), position, message)


@pytest.mark.parametrize("position", range(1, 40, 3))
def test_no_removal_ends_in_a_traceback_even_with_the_chain_forged(folder: Path, world: World, position: int) -> None:
    """Cores and invariants that meet a log that cannot be say so."""
    execute(folder, "DELETE FROM entries WHERE position = ?", position)
    execute(folder, "UPDATE entries SET position = position - 1, cause = CASE WHEN cause >= ?1 THEN cause - 1 ELSE cause END "
            "WHERE position > ?1", position)  # fmt: skip
    forge_chain(folder)
    check(folder)


def test_an_empty_recording_passes_and_one_without_its_plan_does_not(tmp_path: Path, world: World) -> None:
    entries, world.store.entries = world.store.entries, []
    try:
        assert check(save(tmp_path / "empty", world.store, with_summary=False)).entries == 0
    finally:
        world.store.entries = entries
    save(tmp_path, world.store)
    execute(tmp_path, "DELETE FROM entries WHERE position = 1")
    found(check(tmp_path), 2, "position 2 follows 0")
