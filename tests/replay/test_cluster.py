"""A recording of a run on many GPUs of several machines is read anywhere: decisions, devices, report and trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bus.entry import Draft
from bus.events import ServiceStarted
from bus.memory_log import MemoryStore
from replay.cli import app
from replay.recorded import verify_recording
from services.monitor.summary import summarise
from tests.cases.runs import run_plan, small_plan
from tests.replay.recordings import save
from tests.simulation.check import subjects_of

DEVICES = {
    "trainer": "cuda:0,cuda:1,cuda:2,cuda:3", "replica:h0": "cuda:0,cuda:1", "replica:h1": "cuda:2,cuda:3",
    "replica:s0": "cuda:126,cuda:127",
}  # fmt: skip


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    """Each service on a machine of its own, as its first word says."""
    plan = small_plan(run="cluster", standalone=("s0",), hybrid=("h0", "h1"), devices=DEVICES)
    store = MemoryStore("cluster")
    for position, source, epoch, derived, cause, at, _, event in run_plan(plan):
        if isinstance(event, ServiceStarted):
            event = event.model_copy(update={"host": f"node-of-{source}", "machine": f"boot-{source}", "token": f"{source}-{epoch}"})
        assert store.write(source, epoch, [Draft(event, derived, cause, at)]) == position
    return store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, store: MemoryStore) -> Path:
    return save(tmp_path_factory.mktemp("cluster"), store)


def test_decisions_are_the_same_here(folder: Path) -> None:
    report = verify_recording(folder, subjects_of)
    assert report.passed, report
    assert report.decisions > 0


def test_devices_are_grouped_by_who_shares_them_over_the_whole_run(store: MemoryStore) -> None:
    groups = summarise(store.entries)["devices"]
    assert isinstance(groups, list)
    assert [(group["name"], group["count"], group["holders"]) for group in groups] == [
        ("cuda:0,cuda:1", 2, ["trainer", "h0"]), ("cuda:2,cuda:3", 2, ["trainer", "h1"]), ("cuda:126,cuda:127", 2, ["s0"]),
    ]  # fmt: skip


@pytest.mark.parametrize(("command", "file"), [("report", "page.html"), ("trace", "run.pftrace")])
def test_report_and_trace_are_made_here(folder: Path, tmp_path: Path, command: str, file: str) -> None:
    result = CliRunner().invoke(app, [command, str(folder), "-o", str(tmp_path / file)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / file).stat().st_size > 1000
