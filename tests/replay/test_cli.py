"""What `swingshift replay` prints, and with which exit status it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from replay.cli import app
from replay.recorded import SUMMARY
from tests.replay.recordings import change_body, execute, forge_chain, of_this_checkout, positions, save, simulated_with
from tests.simulation.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return simulated_with("TrainGranted", "WaitSamples", "SwitchDone", crashes=False)


@pytest.fixture
def folder(tmp_path: Path, world: World) -> Path:
    return save(tmp_path, of_this_checkout(world))


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_verify_passes_on_an_honest_recording_and_counts(folder: Path, world: World) -> None:
    result = invoke("verify", folder)
    decisions = sum(entry.derived for entry in world.store.entries)
    assert result.exit_code == 0, result.output
    assert f"{len(world.store.entries)} entries, {decisions} decisions recomputed in" in result.output
    assert "passed: the chain is whole, every decision is what its core decides, every invariant holds\n" in result.output
    assert "other code" not in result.output


def test_verify_says_when_no_summary_tells_where_the_log_ends(folder: Path) -> None:
    (folder / SUMMARY).unlink()
    result = invoke("verify", folder)
    assert result.exit_code == 0
    assert "without a summary.json a cut tail would not be found" in result.output


def test_verify_ends_with_1_and_names_position_source_and_both_sides(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "TrainGranted")[0]
    cause = world.store.entries[position - 1].cause
    change_body(folder, position, lambda body: body.update(reason="rejected"))
    result = invoke("verify", folder)
    assert result.exit_code == 1
    assert f"position {position}, controller: the chain breaks here" in result.output
    assert f"position {cause}, controller: TrainGranted is not what the core decides\n  recorded: TrainGranted(" in result.output
    assert "reason='rejected')\n  expected: TrainGranted(" in result.output
    assert f"FAILED: 2 differences, the first at position {cause}\n" in result.output


def test_verify_explains_a_difference_so_that_one_can_go_on_from_there(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "TrainGranted")[0]
    cause = world.store.entries[position - 1].cause
    change_body(folder, position, lambda body: body.update(reason="rejected"))
    forge_chain(folder)
    lines = invoke("verify", folder).output.splitlines()
    assert lines[0] == f"position {cause}, controller: TrainGranted is not what the core decides"
    assert re.fullmatch(r"  reason: 'rejected' recorded, '\w+' expected", lines[3]), lines[3]
    assert re.fullmatch(rf"  decided by: entry {position}, controller/1, code \w+, the same as of this checkout", lines[4]), lines[4]
    assert lines[5] == "  the state before it:"
    assert f"  look there: swingshift replay state {folder} --at {cause} --service controller" in lines
    assert "  usual causes:" in lines


def test_verify_lists_incarnations_of_other_code_apart_and_passes(tmp_path: Path, world: World) -> None:
    """The simulated code digests are none of this checkout; a decision is taken otherwise, as other code would."""
    save(tmp_path, world.store)
    honest = invoke("verify", tmp_path).output
    assert re.search(r"^  controller/1 ran code-a, here is \w+: the same decisions$", honest, re.MULTILINE), honest
    assert "passed: the chain is whole, every decision is what its core decides" in honest
    position = positions(world.store.entries, "WaitSamples")[0]
    change_body(tmp_path, position, lambda body: body.update(need=77))
    result = invoke("verify", tmp_path)
    before, _, apart = result.output.partition("other code: ")
    assert "need=77" not in before
    assert re.match(r"\d+ incarnations did not run the code of this checkout; \d+ differences?\n", apart)
    assert re.search(r"^  trainer/1 ran code-a, here is \w+: \d+ differences?$", apart, re.MULTILINE)
    assert "need: 77 recorded" in apart
    assert f"FAILED: 1 difference, at position {position}\n" in apart  # the chain is everybody's


def test_verify_prints_as_many_differences_as_asked_for(folder: Path) -> None:
    execute(folder, "UPDATE entries SET at = at + 1 WHERE position > 10")
    many, few = invoke("verify", folder, "--limit", 0), invoke("verify", folder, "--limit", 3)
    assert many.output.count("the chain breaks here") > 30
    assert few.output.count("the chain breaks here") == 3
    assert "more; --limit 0 prints all" in few.output


@pytest.mark.parametrize("command", ["verify", "show"])
def test_a_folder_that_is_no_recording_ends_with_2_and_one_line(tmp_path: Path, command: str) -> None:
    result = invoke(command, tmp_path)
    assert result.exit_code == 2
    assert (
        result.output
        == f"swingshift replay: {tmp_path} is no recording: it has no events.sqlite. Name the folder of a run, such as runs/RUN\n"
    )


def test_a_broken_summary_ends_with_2_and_its_name(folder: Path) -> None:
    (folder / SUMMARY).write_text("{}")
    result = invoke("verify", folder)
    assert result.exit_code == 2
    assert "summary.json has no last_chain" in result.output


def test_show_lists_entries_one_a_line(folder: Path, world: World) -> None:
    lines = invoke("show", folder).output.splitlines()
    assert len(lines) == len(world.store.entries)
    assert lines[0].split()[0] == "1"
    assert f"RunPlanned run={world.store.run!r}" in lines[0]


def test_show_filters_by_kind_source_and_position(folder: Path, world: World) -> None:
    kinds = ("SwitchStarted", "SwitchDone")
    lines = invoke("show", folder, "--kind", kinds[0], "--kind", kinds[1], "--source", "controller").output.splitlines()
    assert [int(line.split()[0]) for line in lines] == positions(world.store.entries, *kinds)
    lines = invoke("show", folder, "--from", 5, "--to", 9).output.splitlines()
    assert [int(line.split()[0]) for line in lines] == [5, 6, 7, 8, 9]


def test_show_as_json_is_one_object_a_line(folder: Path, world: World) -> None:
    shown = [json.loads(line) for line in invoke("show", folder, "--json").output.splitlines()]
    assert [(entry["position"], entry["chain"]) for entry in shown][1:] != []
    assert shown[0]["event"] == json.loads(world.store.entries[0].event.model_dump_json())


def test_show_names_an_entry_that_cannot_be_read_and_goes_on(folder: Path) -> None:
    execute(folder, "UPDATE entries SET body = x'c1' WHERE position = 3")
    lines = invoke("show", folder, "--from", 3, "--to", 4).output.splitlines()
    assert "?? entry 3 cannot be read" in lines[0]
    assert lines[1].split()[0] == "4"
    assert "cannot be read" in json.loads(invoke("show", folder, "--json", "--from", 3, "--to", 3).output)["error"]


def test_show_names_the_nearest_kind(folder: Path) -> None:
    result = invoke("show", folder, "--kind", "StepDon")
    assert result.exit_code == 2
    assert "there is no kind 'StepDon': did you mean 'StepDone'?" in result.output


def test_help_imports_neither_torch_nor_the_cores() -> None:
    code = "import sys; import replay.cli; print([m for m in ('torch', 'pydantic', 'rich.progress', 'replay.verify') if m in sys.modules])"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", f"{done.stdout} after {time.monotonic() - began:.2f} s"
