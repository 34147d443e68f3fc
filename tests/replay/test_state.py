"""What `swingshift replay state` says, as text and as JSON, and what one can do in a session."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bus.host import rebuild
from replay.cli import app
from replay.session import HELP, Session
from replay.state_view import describe
from replay.travel import Travel
from services.controller.core import ControllerCore
from tests.replay.recordings import of_this_checkout, positions, save, simulated_with
from tests.simulation.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return simulated_with("SwitchDone", "WaitSamples", "CheckpointSaved", "SampleMoved", crashes=False)


@pytest.fixture
def folder(tmp_path: Path, world: World) -> Path:
    return save(tmp_path / "run", of_this_checkout(world))


def invoke(*arguments: object, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["state", *map(str, arguments)], input=typed)


def test_the_text_names_the_entry_its_cause_and_each_service(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "SwitchDone")[0]
    result = invoke(folder, "--at", position)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == f"{folder}: entry {position} of {len(world.store.entries)}"
    assert lines[1].split()[0] == str(position)
    assert lines[2] == "because of"
    assert lines[3].split()[0] == str(world.store.entries[position - 1].cause)
    for source in ("trainer", "rollouter", "controller", "policy"):
        assert f"\n{source}/1, since entry " in result.output
    assert "other code" not in result.output
    assert re.search(r"\n  devices +(lent by swing|moving)", result.output)
    assert "  last verdict " in result.output


def test_the_lines_of_a_service_are_those_of_its_core(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "SwitchStarted")[0]
    core = ControllerCore()
    entries = [entry for entry in world.store.entries if entry.position <= position or (entry.derived and entry.cause <= position)]
    rebuild(core, entries[:position] + [entry for entry in entries[position:] if entry.source == "controller"])
    result = invoke(folder, "--at", position, "--service", "controller")
    assert [f"  {line}" for line in describe(core)] == result.output.splitlines()[-len(describe(core)) :]
    assert "trainer/1" not in result.output


def test_json_holds_everything_and_is_the_same_every_time(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "BatchFormed")[-1]
    one, two = (invoke(folder, "--at", position, "--json").output for _ in range(2))
    assert one == two
    state = json.loads(one)
    assert (state["position"], state["last_position"]) == (position, len(world.store.entries))
    assert state["entry"]["kind"] == "BatchFormed"
    assert state["plan"]["run"] == world.store.run
    assert list(state["services"]) == ["trainer", "rollouter", "controller", "policy"]
    trainer = state["services"]["trainer"]
    assert trainer["state"]["books"]["batch"]["samples"] == state["entry"]["event"]["samples"]
    assert trainer["state"]["books"]["plan"] == {"see": "plan"}
    assert [request["key"] for request in trainer["outstanding"]] == [f"train:{state['entry']['event']['step']}"]
    assert trainer["code"] == trainer["code_of_checkout"]
    assert state["services"]["controller"]["deadlines"]


def test_step_is_right_after_that_step(folder: Path, world: World) -> None:
    state = json.loads(invoke(folder, "--step", 1, "--json", "--service", "trainer").output)
    assert state["position"] == positions(world.store.entries, "StepDone")[0]
    assert state["services"]["trainer"]["state"]["books"]["steps_done"] == 1


def test_until_goes_on_to_the_next_such_entry(folder: Path, world: World) -> None:
    first, second = [
        entry.position
        for entry in world.store.entries
        if entry.event.kind == "SwitchStarted" and entry.event.__dict__["target"] == "rollout"
    ][:2]
    assert f": entry {first} of " in invoke(folder, "--until", "SwitchStarted target=rollout").output
    assert f": entry {second} of " in invoke(folder, "--at", first, "--until", "SwitchStarted target=rollout").output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--at", 99999), "has no entry 99999: it has those from 1 to "),
        (("--step", 999), "step 999 is not in "),
        (("--step", 1, "--at", 1), "--step and --at both say where to look"),
        (("--service", "trianer"), "'trianer' decides nothing in this run: did you mean 'trainer'?"),
        (("--until", "StepDon"), "there is no kind 'StepDon': did you mean 'StepDone'?"),
        (("--until", "RunEnded reason=memory"), "is like 'RunEnded reason=memory'"),
    ],
)
def test_what_cannot_be_shown_ends_with_2_and_one_line(folder: Path, arguments: tuple[object, ...], complaint: str) -> None:
    result = invoke(folder, *arguments)
    assert result.exit_code == 2
    assert complaint in result.output
    assert len(result.output.splitlines()) == 1


# --- sessions ----------------------------------------------------------------------------------------------------------------------


def test_one_can_step_forth_and_back_and_is_told_what_an_entry_changes(folder: Path, world: World) -> None:
    position = positions(world.store.entries, "SampleReady")[0]
    said: list[str] = []
    with Travel.open(folder) as travel:
        session = Session(travel, position - 1, travel.sources, said.append)
        for command, place in (("step", position), ("b", position - 1), ("", position), ("s 3", position + 3), ("back 2", position + 1)):
            assert session.do(command)
            assert session.position == place
            assert session.prompt == f"[{place}/{len(world.store.entries)}] "
    assert any(line.strip().startswith("trainer    ready        1, a step needs") for line in said), said


def test_one_can_go_anywhere_look_at_a_service_and_ask_why(folder: Path, world: World) -> None:
    said: list[str] = []
    with Travel.open(folder) as travel:
        session = Session(travel, 1, travel.sources, said.append)
        session.do("until SwitchStarted target=rollout")
        here = session.position
        assert world.store.entries[here - 1].event.kind == "SwitchStarted"
        said.clear()
        session.do("why")
        assert [int(line.split()[0]) for line in said][:2] == [here, world.store.entries[here - 1].cause]
        said.clear()
        session.do("show controller")
        assert any(line.startswith("controller/1") for line in said)
        assert not any(line.startswith("trainer/1") for line in said)
        session.do("go 5")
        assert session.position == 5
        said.clear()
        session.do("help")
        assert said == [HELP]
        assert not session.do("quit")


def test_a_mistake_in_a_session_is_said_and_nothing_is_lost(folder: Path, world: World) -> None:
    said: list[str] = []
    with Travel.open(folder) as travel:
        session = Session(travel, travel.last, travel.sources, said.append)
        for command, complaint in (
            ("step", "is the last one"),
            ("go nowhere", "'nowhere' is not a position"),
            ("go", "'' is not a position"),
            ("back x", "'x' is not a number of entries"),
            ("until StepDon", "did you mean 'StepDone'?"),
            ("shwo", "there is no command 'shwo': did you mean 'show'?"),
            ("show polcy", "did you mean 'policy'?"),
        ):
            assert session.do(command)
            assert complaint in said[-1]
            assert session.position == travel.last


def test_commands_may_come_from_a_pipe(folder: Path, world: World) -> None:
    result = invoke(folder, "-i", "--at", 10, typed="step\nshow policy\nquit\nstep\n")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines() if line.strip()[:2] in ("10", "11", "12")] == ["10", "11", "11"]
    assert "policy/1, since entry" in result.output


def test_a_terminal_gets_a_prompt(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "swingshift", "replay", "state", str(folder), "-i"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    ) as process:
        os.close(theirs)
        os.write(ours, b"step\nquit\n")
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other end was closed
            pass
        assert process.wait(30) == 0, shown
    os.close(ours)
    assert b"[1/" in shown
    assert b"[2/" in shown
