"""Own data, own reward, own model: the example that the README sends a newcomer to, as it is there, and the same with conversations."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bus.events import BatchFormed, RunEnded, SampleReady
from bus.recording import Recording

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "own"
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "own-model"
    subprocess.run([sys.executable, str(EXAMPLE / "make_model.py"), str(folder)], check=True, timeout=TIMEOUT_S)
    return folder


def run(folder: Path, model: Path, *settings: str) -> str:
    """Runs the example with further settings; returns what it printed."""
    given = (f"folder={folder}", f"model.path={model}", "devices=unpinned", *settings)
    sets = [part for setting in given for part in ("--set", setting)]
    command = [sys.executable, "-m", "swingshift", "run", str(EXAMPLE / "config.yaml"), "--run", "own", "--in-process", *sets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def rewards(folder: Path) -> Sequence[float]:
    with Recording.open(folder / "own") as recording:
        events = [entry.event for entry in recording.entries()]
    assert [event.reason for event in events if isinstance(event, RunEnded)] == ["completed"]
    trained = {sample for event in events if isinstance(event, BatchFormed) for sample in event.samples}
    return [event.mean_reward for event in events if isinstance(event, SampleReady) and event.sample in trained]


def test_the_example_of_own_data_reward_and_model_runs_as_it_is_and_learns(tmp_path: Path, model: Path) -> None:
    said = run(tmp_path, model, "async_training.total_steps=30")
    assert "passed" in said
    found = rewards(tmp_path)
    assert len(found) == 30 * 8
    first, last = found[:60], found[-60:]
    assert sum(last) > sum(first), "the reward did not rise"
    assert (tmp_path / "own" / "code" / "reward.py").read_text() == (EXAMPLE / "reward.py").read_text()


def test_conversations_in_parquet_with_a_named_reward_run(tmp_path: Path, model: Path) -> None:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    rows = [json.loads(line) for line in (EXAMPLE / "data.jsonl").read_text().splitlines()]
    chats = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "reward_model": {"ground_truth": row["answer"], "style": "rule"}}
        for row in rows
    ]
    parquet.write_table(pyarrow.Table.from_pylist(chats), tmp_path / "chats.parquet")
    run(
        tmp_path, model, f"data.train_files={tmp_path}/chats.parquet", "data.answer_key=reward_model.ground_truth", "data.reward=number",
        "async_training.total_steps=null", "async_training.total_epochs=1", "replicas.hybrid=0",
    )  # fmt: skip
    found = rewards(tmp_path)
    assert len(found) == 25
    assert set(found) <= {count / 8 for count in range(9)}
