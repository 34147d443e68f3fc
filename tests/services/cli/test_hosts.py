"""What `status` and `doctor` say of where services are: nothing while all are on one machine, else the machine of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from bus.events import ServiceStarted
from bus.memory_log import MemoryLog, MemoryStore
from bus.recorder import Recorder
from services.cli.doctor import doctor_command
from services.cli.status import status_command
from services.local_settings import INFO
from tests.bus.factories import fact, plan

Command = Callable[[str, str | None, Path], None]


def run_on(folder: Path, **hosts: str) -> None:
    """The folder of a run whose services have said where they are; `_` stands for the `:` of a replica."""
    store = MemoryStore.create(plan("r"), at=5)
    log = MemoryLog(store)
    for service, host in hosts.items():
        log.attach(service.replace("_", ":"), fact(ServiceStarted(code="c", host=host, pid=1)))
    (folder / "r").mkdir()
    (folder / "r" / INFO).write_text(json.dumps({"run": "r"}))
    with Recorder.open(folder / "r", "r", store.log_id) as recorder:
        recorder.append(store.entries)


@pytest.fixture(params=[status_command, doctor_command])
def command(request: pytest.FixtureRequest) -> Command:
    found: Command = request.param
    return found


def lines(command: Command, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with suppress(typer.Exit):  # the doctor's: the run was cut off
        command("r", None, folder)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_services_of_several_machines_are_shown_with_theirs(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    run_on(tmp_path, trainer="node-1", rollouter="node-2", replica_s0="node-3")
    shown = lines(command, tmp_path, capsys)
    assert [line.split()[-1] for line in shown if line.startswith(("service ", "trainer 1", "rollouter 1", "replica:s0 1"))] == [
        "on", "node-3", "node-2", "node-1",
    ]  # fmt: skip


def test_while_all_are_on_one_machine_nothing_is_said_of_it(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    run_on(tmp_path, trainer="node-1", rollouter="node-1")
    assert not any("node-1" in line for line in lines(command, tmp_path, capsys))
