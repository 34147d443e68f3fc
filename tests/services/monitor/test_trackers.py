"""What goes to trackers: files that TensorBoard itself reads, each step once, and a clear word when a tracker is not there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.config import MonitorConfig, RunConfig
from services.monitor.trackers import FOLDER, STATE, Trackers, check_trackers
from services.plan import plan_run

READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
found.Reload()
print(json.dumps({tag: [(point.step, point.wall_time, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}))
"""


def read_back(folder: Path) -> dict[str, list[list[float]]]:
    """Tag -> (step, wall time, value), as TensorBoard reads the files. A process of its own: its imports warn about each other."""
    done = subprocess.run([sys.executable, "-c", READER, str(folder)], capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, list[list[float]]] = json.loads(done.stdout)
    return found


def tracked(folder: Path, *steps: tuple[int, float]) -> None:
    """A monitor that tells these steps and ends."""
    trackers = Trackers(MonitorConfig(), "r", folder)
    for step, value in steps:
        trackers.log(step, 1_700_000_000.25 + step, {"perf/resource_utilization": value, "actor/loss": -value})
    trackers.close()


def test_tensorboard_reads_back_what_was_written_with_the_step_as_its_axis(tmp_path: Path) -> None:
    tracked(tmp_path, *((step, step / 8) for step in range(1, 301)))
    found = read_back(tmp_path / FOLDER)
    assert set(found) == {"perf/resource_utilization", "actor/loss"}
    assert found["perf/resource_utilization"] == [[step, 1_700_000_000.25 + step, step / 8] for step in range(1, 301)]
    assert found["actor/loss"][-1] == [300, 1_700_000_300.25, -37.5]


def test_a_monitor_that_starts_anew_writes_no_step_twice(tmp_path: Path) -> None:
    tracked(tmp_path, (1, 0.5), (2, 0.25))
    tracked(tmp_path, (1, 0.5), (2, 0.25), (3, 0.125), (4, 0.0625))
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
    assert [point[0] for point in read_back(tmp_path / FOLDER)["actor/loss"]] == [1, 2, 3, 4]


def test_a_step_that_was_written_by_a_monitor_that_died_before_it_noted_it_is_replaced(tmp_path: Path) -> None:
    tracked(tmp_path, (1, 0.5), (2, 0.25))
    (tmp_path / STATE).write_text('{"tensorboard": 1}')
    tracked(tmp_path, (1, 0.5), (2, 0.25), (3, 0.125))
    assert [point[0] for point in read_back(tmp_path / FOLDER)["actor/loss"]] == [1, 2, 3]


def test_a_monitor_with_nothing_new_to_write_makes_no_file(tmp_path: Path) -> None:
    tracked(tmp_path, (1, 0.5))
    tracked(tmp_path, (1, 0.5))
    assert len(list((tmp_path / FOLDER).iterdir())) == 1


def test_what_was_tracked_is_told_from_a_file_that_must_be_whole(tmp_path: Path) -> None:
    (tmp_path / STATE).write_text("{")
    with pytest.raises(ConfigError, match=r"tracked\.json cannot be read: .*; remove it"):
        Trackers(MonitorConfig(), "r", tmp_path)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named_with_what_to_do(name: str) -> None:
    config = MonitorConfig.model_validate({"trackers": ["tensorboard", name]})
    with pytest.raises(ConfigError, match=f"monitor.trackers names {name}, which is not installed here: `pip install {name}`"):
        check_trackers(config, installed=lambda _: False)
    check_trackers(config, installed=lambda _: True)


def test_a_plan_is_refused_when_a_tracker_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [path for path in sys.path if "site-packages" not in path] or sys.path)
    settings = {"monitor": {"trackers": ["trackio"]}, "async_training": {"total_steps": 1}, "devices": "unpinned"}
    with pytest.raises(ConfigError, match="trackio, which is not installed here"):
        plan_run(RunConfig.model_validate(settings), "r")


STAND_IN = """
calls = []
def init(**settings): calls.append(("init", settings))
def log(values, step): calls.append((step, dict(values)))
def finish(): calls.append("finish")
"""


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_wandb_and_trackio_get_the_same_scalars_on_the_same_axis(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with their three functions stands in: the real ones ask for an account or a server."""
    (tmp_path / f"{name}.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    folder = tmp_path / "run"
    folder.mkdir()
    trackers = Trackers(MonitorConfig.model_validate({"trackers": [name], "project": "p"}), "r7", folder)
    for step in (1, 2):
        trackers.log(step, 0.0, {"perf/throughput": float(step)})
    trackers.close()
    calls = calls_of(name)
    assert isinstance(calls[0], tuple)
    settings = calls[0][1]
    assert isinstance(settings, Mapping)
    assert (settings["project"], settings["name"], settings["resume"]) == ("p", "r7", "allow")
    assert calls[1:] == [(1, {"perf/throughput": 1.0}), (2, {"perf/throughput": 2.0}), "finish"]
    assert json.loads((folder / STATE).read_text()) == {name: 2}
    monkeypatch.delitem(sys.modules, name)


def calls_of(name: str) -> list[object]:
    calls: list[object] = vars(sys.modules[name])["calls"]
    return calls
