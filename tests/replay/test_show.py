"""`swingshift replay show`: which entries have to do with what one asks for, and what led to one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bus.entry import Entry
from replay.cli import app
from tests.replay.recordings import execute, positions, save, simulated_with
from tests.simulation.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return simulated_with("SwitchDone", "BatchFormed", "SampleMoved", "AbortRequested", crashes=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, world: World) -> Path:
    return save(tmp_path_factory.mktemp("run"), world.store)


def show(folder: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["show", str(folder), *map(str, arguments)])


def shown(folder: Path, *arguments: object) -> list[int]:
    result = show(folder, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line)["position"] for line in result.output.splitlines()]


def that(entries: list[Entry], **fields: object) -> list[int]:
    """Positions of entries whose event says all of this; of a tuple, that it is one of its items."""

    def says(entry: Entry) -> bool:
        found = [(entry.event.__dict__.get(name), value) for name, value in fields.items()]
        return all(value in here if isinstance(here, tuple) else here == value for here, value in found)

    return [entry.position for entry in entries if says(entry)]


def test_a_sample_is_followed_from_its_start_to_its_training(folder: Path, world: World) -> None:
    entries = world.store.entries
    (batch, *_) = (entry.event for entry in entries if entry.event.kind == "BatchFormed")
    sample = batch.__dict__["samples"][0]
    found = shown(folder, "--sample", sample)
    assert set(that(entries, sample=sample)) | set(that(entries, samples=sample)) <= set(found)
    kinds = [entries[position - 1].event.kind for position in found]
    assert kinds[0] == "SampleStarted"
    assert {"GenerationRequested", "GenerationFinished", "SampleReady", "BatchFormed"} <= set(kinds)
    answers = {f"{sample}.{answer}" for answer in range(world.plan.rollout_n)}
    requests = {entries[position - 1].event.__dict__.get("request") for position in found} - {None}
    assert requests == answers


def test_a_request_a_swing_and_a_step_are_found_by_their_numbers(folder: Path, world: World) -> None:
    entries = world.store.entries
    assert set(that(entries, request="0.0")) <= set(shown(folder, "--request", "0.0"))
    assert shown(folder, "--swing", 1) == that(entries, swing=1)
    assert shown(folder, "--step", 1) == that(entries, step=1)


def test_a_replica_is_found_in_what_it_said_and_in_what_it_was_asked(folder: Path, world: World) -> None:
    name = (world.plan.hybrid or world.plan.standalone)[0]
    entries = world.store.entries
    said = [entry.position for entry in entries if entry.source == f"replica:{name}"]
    assert set(said) | set(that(entries, replica=name)) <= set(shown(folder, "--replica", name))
    assert shown(folder, "--replica", "nobody") == []


def test_filters_are_taken_together_also_with_kinds_and_places(folder: Path, world: World) -> None:
    entries = world.store.entries
    found = shown(folder, "--sample", 0, "--kind", "GenerationRequested", "--from", 1, "--to", len(entries) // 2)
    assert found == [position for position in that(entries, sample=0) if position <= len(entries) // 2 and is_request(entries, position)]
    assert shown(folder, "--sample", 0, "--step", 1) == [
        position for position in that(entries, step=1) if position in that(entries, samples=0)
    ]


def is_request(entries: list[Entry], position: int) -> bool:
    return entries[position - 1].event.kind == "GenerationRequested"


def test_grep_looks_at_whole_lines_and_a_broken_expression_is_named(folder: Path, world: World) -> None:
    expected = positions(world.store.entries, "SwitchStarted")
    assert shown(folder, "--grep", r"controller/\d+ .*\*SwitchStarted swing=\d") == expected
    result = show(folder, "--grep", "(")
    assert result.exit_code == 2
    assert "--grep '(' is no regular expression" in result.output


def test_why_goes_back_to_a_fact(folder: Path, world: World) -> None:
    entries = world.store.entries
    position = positions(entries, "SwitchStarted")[0]
    chain = shown(folder, "--why", position)
    assert chain[0] == position
    for one, before in itertools.pairwise(chain):
        assert entries[one - 1].cause == before
    assert all(entries[each - 1].derived for each in chain[:-1])
    assert not entries[chain[-1] - 1].derived
    fact = chain[-1]
    assert f"--why {entries[fact - 1].cause} goes on" in show(folder, "--why", position).output
    further = shown(folder, "--why", fact)
    assert further[:2] == [fact, entries[fact - 1].cause]


def test_why_of_the_first_entry_is_that_entry_and_of_none_a_mistake(folder: Path) -> None:
    assert shown(folder, "--why", 1) == [1]
    assert show(folder, "--why", 99999).exit_code == 2


def test_an_entry_that_cannot_be_read_is_in_no_ones_way(tmp_path: Path, world: World) -> None:
    save(tmp_path, world.store)
    execute(tmp_path, "UPDATE entries SET body = x'c1' WHERE position = 3")
    execute(tmp_path, "UPDATE entries SET kind = 'Unknown' WHERE position = 4")
    assert 3 not in shown(tmp_path, "--sample", 0)
    assert shown(tmp_path, "--grep", "cannot be read") == [3, 4]
