"""`swingshift replay diff`: where two recordings of one plan part, and of what kind that is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bus.entry import Draft, Entry
from bus.events import Event
from bus.memory_log import MemoryStore
from replay.cli import app
from tests.replay.recordings import positions, save, simulated_with
from tests.simulation.world import World

Change = Callable[[list[Entry]], list[Entry]]


@pytest.fixture(scope="module")
def world() -> World:
    return simulated_with("SwitchDone", "WaitSamples", "GenerationFinished", crashes=False)


@pytest.fixture(scope="module")
def entries(world: World) -> list[Entry]:
    return world.store.entries


def record(folder: Path, entries: Sequence[Entry]) -> Path:
    """A recording of entries as they are given; positions and chain are computed anew."""
    store = MemoryStore("case")
    for _, source, epoch, derived, cause, at, _, event in entries:
        store.write(source, epoch, [Draft(event, derived, cause, at)])
    return save(folder, store, with_summary=False)


def diff(tmp_path: Path, one: Sequence[Entry], other: Sequence[Entry], *arguments: str) -> Result:
    a, b = record(tmp_path / "a", one), record(tmp_path / "b", other)
    return CliRunner().invoke(app, ["diff", str(a), str(b), *arguments])


def found(tmp_path: Path, one: Sequence[Entry], other: Sequence[Entry], *arguments: str) -> dict[str, object]:
    result = diff(tmp_path, one, other, "--json", *arguments)
    answer: dict[str, object] = json.loads(result.output)
    assert result.exit_code == (0 if answer["equal"] else 1)
    return answer


def changed(entries: Sequence[Entry], position: int, **fields: object) -> list[Entry]:
    """A copy in which the event at `position` says something else."""
    entry = entries[position - 1]
    event: Event = entry.event.model_copy(update=fields)
    return [*entries[: position - 1], entry._replace(event=event), *entries[position:]]


def swapped(entries: Sequence[Entry], position: int) -> list[Entry]:
    """A copy in which this entry and the next have changed places."""
    return [*entries[: position - 1], entries[position], entries[position - 1], *entries[position + 1 :]]


def test_a_recording_is_equal_to_itself(tmp_path: Path, entries: list[Entry]) -> None:
    result = diff(tmp_path, entries, entries, "--strict")
    assert result.exit_code == 0
    assert f"equal: all {len(entries)} entries\n" in result.output


def test_times_processes_hosts_and_places_do_not_count_unless_asked_for(tmp_path: Path, entries: list[Entry]) -> None:
    there = changed(entries, positions(entries, "ServiceStarted")[0], pid=77, host="elsewhere")
    there = changed(there, positions(entries, "WeightsPublished")[0], uri="file:///elsewhere/w0", seconds=9.0)
    there = changed(there, positions(entries, "StepDone")[0], seconds={"train": 77.0})
    there = [entry._replace(at=entry.at + entry.position) for entry in there]
    assert found(tmp_path / "1", entries, there)["equal"]
    answer = found(tmp_path / "2", entries, there, "--strict")
    assert (answer["kind"], answer["compared"], answer["fields"]) == ("fact", 0, [["at", entries[0].at, entries[0].at + 1]])


def test_another_plan_is_named_with_what_differs(tmp_path: Path, entries: list[Entry]) -> None:
    answer = found(tmp_path, entries, changed(entries, 1, total_steps=99, run="other"))
    assert (answer["kind"], answer["compared"]) == ("plan", 0)
    assert answer["fields"] == [["total_steps", entries[0].event.__dict__["total_steps"], 99]]


def test_a_plan_for_another_machine_is_noted_and_the_comparison_goes_on(tmp_path: Path, entries: list[Entry]) -> None:
    config = json.dumps({"folder": "/there/runs", "model": {"path": "/there/m"}, "actor": {"lr": 0.1}})
    ours = changed(entries, 1, environment={"torch": "2.9"}, config=config.replace("there", "here"))
    theirs = changed(entries, 1, environment={"torch": "2.10"}, config=config)
    answer = found(tmp_path / "1", ours, theirs)
    assert answer["equal"]
    assert answer["machines"] == [["environment.torch", "2.9", "2.10"]]
    other = changed(theirs, 1, config=config.replace("0.1", "0.2"))
    assert found(tmp_path / "2", ours, other)["fields"] == [["config.actor.lr", 0.1, 0.2]]


def test_a_fact_that_came_out_differently_is_named_with_its_fields(tmp_path: Path, entries: list[Entry]) -> None:
    position = positions(entries, "GenerationFinished")[2]
    answer = found(tmp_path, entries, changed(entries, position, num_tokens=77))
    assert (answer["kind"], answer["compared"]) == ("fact", position - 1)
    assert answer["fields"] == [["num_tokens", entries[position - 1].event.__dict__["num_tokens"], 77]]
    assert "GenerationFinished by replica:" in str(answer["what"])


def test_a_decision_that_differs_though_all_before_is_equal_is_the_codes(tmp_path: Path, entries: list[Entry]) -> None:
    position = positions(entries, "WaitSamples")[0]
    answer = found(tmp_path, entries, changed(entries, position, need=77))
    assert (answer["kind"], answer["compared"]) == ("decision", position - 1)
    assert answer["fields"] == [["need", entries[position - 1].event.__dict__["need"], 77]]
    cause = entries[position - 1].cause
    assert answer["what"] == f"trainer decides differently on entry {cause}, before which all is equal: WaitSamples"


def test_a_decision_that_only_one_of_them_took_is_the_codes_too(tmp_path: Path, entries: list[Entry]) -> None:
    position = positions(entries, "WaitSamples")[0]
    without = [*entries[: position - 1], *(entry for entry in entries[position:] if entry.cause < position)]
    for name, one, other, where in (("ab", entries, without, "A"), ("ba", without, entries, "B")):
        answer = found(tmp_path / name, one, other)
        assert answer["kind"] == "decision"
        assert f"trainer decides WaitSamples in {where} only, on entry {entries[position - 1].cause}" in str(answer["what"])


def independent(entries: Sequence[Entry]) -> int:
    """A position whose entry and the next are facts of two replicas or services, neither of them caused by the other."""
    for one, two in itertools.pairwise(entries):
        if not one.derived and not two.derived and one.source != two.source and two.cause != one.position:
            return one.position
    raise AssertionError("there is none")


def test_the_same_facts_in_another_order_are_no_difference_of_what_happened(tmp_path: Path, entries: list[Entry]) -> None:
    position = independent(entries)
    answer = found(tmp_path, entries, swapped(entries, position))
    assert (answer["kind"], answer["compared"]) == ("order", position - 1)
    assert f"what A has here, B has at {position + 1}; what B has here, A has at {position + 1}" in str(answer["what"])


def test_a_fact_that_only_one_of_them_has_is_named(tmp_path: Path, entries: list[Entry]) -> None:
    position = positions(entries, "GenerationFinished")[1]
    entry = entries[position - 1]
    without = [*entries[: position - 1], *(each for each in entries[position:] if each.event != entry.event)]
    answer = found(tmp_path, entries, without)
    assert answer["kind"] in ("fact", "decision")
    assert answer["compared"] == position - 1


def test_one_that_is_the_beginning_of_the_other_is_said_to_be_shorter(tmp_path: Path, entries: list[Entry]) -> None:
    answer = found(tmp_path, entries[:-7], entries)
    assert (answer["kind"], answer["compared"]) == ("shorter", len(entries) - 7)
    assert answer["what"] == f"A ends with entry {len(entries) - 7}, the other one goes on"


def test_the_text_shows_both_sides_around_the_difference_and_the_commands_that_open_it(tmp_path: Path, entries: list[Entry]) -> None:
    position = positions(entries, "WaitSamples")[0]
    result = diff(tmp_path, entries, changed(entries, position, need=77), "-C", "1")
    assert result.exit_code == 1
    assert f"the first {position - 1} entries are equal\n" in result.output
    assert "  need: " in result.output
    marked = [line for line in result.output.splitlines() if line.startswith(">")]
    assert [line[1:].split()[0] for line in marked] == [str(position)] * 2
    assert "need=77" in marked[1]
    assert f"swingshift replay state {tmp_path / 'b'} --at {position}" in result.output
    assert len([line for line in result.output.splitlines() if line[1:].lstrip().startswith(str(position - 1))]) >= 2


def test_other_code_is_said_beside_the_difference(tmp_path: Path, entries: list[Entry]) -> None:
    start = next(entry for entry in entries if entry.source == "trainer")
    theirs = changed(entries, start.position, code="ffff")
    answer = found(tmp_path, entries, changed(theirs, positions(entries, "WaitSamples")[0], need=77))
    assert answer["kind"] == "decision"
    assert answer["codes"] == {"trainer": [start.event.__dict__["code"], "ffff"]}


def test_what_is_no_recording_ends_with_2(tmp_path: Path, entries: list[Entry]) -> None:
    result = CliRunner().invoke(app, ["diff", str(record(tmp_path / "a", entries)), str(tmp_path)])
    assert result.exit_code == 2
    assert "is no recording" in result.output
