"""What a run began with is kept beside its recording: the initial model, the user's own code, and which versions of what there were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bus.blobs import blob_digest
from bus.errors import DiskError
from bus.events import RunPlanned
from services.archiver import origin
from services.archiver.origin import OriginThread, record_origin
from services.config_file import make_config
from services.plan import plan_run
from tests.disks import largest_file

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100_000, "tokenizer.json": b"[]"}


def planned(model: str | Path, reward: str = "sorting") -> RunPlanned:
    """The plan of a run with this model and reward, which need not be there."""
    settings = {"model": {"path": "scripted"}, "rollout": {"engine": "scripted"}, "async_training": {"total_steps": 1}}
    plan = plan_run(make_config({**settings, "devices": "unpinned"}, "test"), "r")
    config = json.loads(plan.config)
    config["model"]["path"], config["data"]["reward"] = str(model), reward
    return plan.model_copy(update={"config": json.dumps(config)})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in {**FILES, "README.md": b"not needed"}.items():
        (folder / name).write_bytes(content)
    return folder


def info(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "weights" / "initial.json").read_text())
    return found


def test_the_initial_model_is_copied_and_described(model: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    record_origin(planned(model), tmp_path / "run", lambda done, total: seen.append((done, total)))
    copied = {path.name: path.read_bytes() for path in (tmp_path / "run" / "weights" / "initial").iterdir()}
    assert copied == FILES
    described = {name: {"num_bytes": len(content), "digest": blob_digest(content)} for name, content in FILES.items()}
    assert info(tmp_path / "run") == {"path": str(model), "copied": True, "files": described}
    total = sum(map(len, FILES.values()))
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_a_large_model_is_recorded_by_path_and_digest(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "MOST_COPIED_BYTES", 1000)
    record_origin(planned(model), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "weights").iterdir()] == ["initial.json"]
    assert info(tmp_path / "run")["copied"] is False
    assert set(info(tmp_path / "run")["files"]) == set(FILES)  # type: ignore[call-overload]


def test_what_is_recorded_stays_as_it_was_also_when_the_original_changes(model: Path, tmp_path: Path) -> None:
    record_origin(planned(model), tmp_path / "run")
    (model / "config.json").write_bytes(b"changed")
    record_origin(planned(model), tmp_path / "run")
    assert (tmp_path / "run" / "weights" / "initial" / "config.json").read_bytes() == b"{}"


def test_a_copy_that_was_cut_off_is_made_anew(model: Path, tmp_path: Path) -> None:
    with largest_file(100_000), pytest.raises(DiskError, match=r"what the run began with cannot be recorded in .*are free there"):
        record_origin(planned(model), tmp_path / "run")
    assert not (tmp_path / "run" / "weights" / "initial").exists()
    record_origin(planned(model), tmp_path / "run")
    assert (tmp_path / "run" / "weights" / "initial" / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_model_that_is_not_on_this_machine_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record_origin(planned(tmp_path / "elsewhere"), tmp_path / "run")
    assert f"the initial model is not recorded, for its folder is not on this machine: folder={tmp_path / 'elsewhere'}" in caplog.text
    assert not (tmp_path / "run" / "weights").exists()


def test_the_users_own_reward_the_lock_file_and_the_versions_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(): ...\n")
    record_origin(planned("scripted", f"{tmp_path / 'mine.py'}:score"), tmp_path / "run")
    code = tmp_path / "run" / "code"
    assert sorted(path.name for path in code.iterdir()) == ["mine.py", "requirements.lock", "versions.json"]
    assert (code / "mine.py").read_text() == "def score(): ...\n"
    versions = json.loads((code / "versions.json").read_text())
    assert set(versions["code"]) == {"trainer", "rollouter", "replica", "controller", "policy", "archiver"}
    assert {"python", "platform", "packages", "policy", "reward"} < set(versions)
    assert {"swingshift", "torch", "transformers"} < set(versions["packages"])


def test_another_recording_of_the_run_has_what_is_not_there_any_more(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(): ...\n")
    plan = planned(model, f"{tmp_path / 'mine.py'}:score")
    record_origin(plan, tmp_path / "run")
    (tmp_path / "mine.py").unlink()
    (tmp_path / "run" / "code" / "versions.json").write_text("{}\n")
    model.rename(tmp_path / "moved")
    record_origin(plan, tmp_path / "second", other=tmp_path / "run")
    assert {path.name for path in (tmp_path / "second" / "weights" / "initial").iterdir()} == set(FILES)
    assert info(tmp_path / "second") == info(tmp_path / "run")
    assert (tmp_path / "second" / "code" / "mine.py").exists()
    assert (tmp_path / "second" / "code" / "versions.json").read_text() == "{}\n"


def test_it_is_done_beside_the_recording(model: Path, tmp_path: Path) -> None:
    with OriginThread(planned(model), tmp_path / "run", patience_s=30.0):
        pass
    assert info(tmp_path / "run")["copied"] is True
