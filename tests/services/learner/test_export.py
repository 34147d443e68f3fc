"""`swingshift export`: a version as a Hugging Face folder, from a run's folder alone, and what is said when there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from bus.entry import Draft
from bus.events import CheckpointSaved, Event, StepDone, WeightsPublished
from bus.memory_log import MemoryStore
from bus.recorder import Recorder
from services.cli.app import build_app
from services.config_file import make_config
from services.devices import Machine
from services.launcher.folders import write_info
from services.learner.digests import weights_digest
from services.learner.hf import HfLearner
from services.learner.wire import as_published
from services.plan import plan_run
from services.weights.store import WeightStore
from tests.services.learner.factories import save_tiny_qwen2, tokenizer
from tests.services.learner.test_hf import make_learner, train

RUN = "r1"


@dataclass
class Recorded:
    """A run of cycles of two steps that publishes and saves as a trainer does, and its recording."""

    folder: Path
    model: Path
    learner: HfLearner = field(init=False)
    digests: dict[int, str] = field(default_factory=dict)
    dtype: str = ""
    """What published weights are rounded to."""

    def __post_init__(self) -> None:
        self.learner = make_learner(self.model)
        self.store = WeightStore(RUN, "file", self.folder / "weights")
        self.events: list[Event] = []

    def publish(self, version: int) -> None:
        notice = self.store.publish(as_published(self.learner.weights(), self.dtype), version, 0, 1)
        self.store.retire({notice.uri})
        self.digests[version] = notice.digest
        self.events.append(
            WeightsPublished(
                version=version, revision=0, transport=notice.transport, uri=notice.uri, digest=notice.digest,
                num_bytes=notice.num_bytes, seconds=0.0, dtype=self.dtype,
            )
        )  # fmt: skip

    def save(self, version: int) -> None:
        step = self.learner.step
        folder = self.folder / "checkpoints" / f"checkpoint-e1-s{step}"
        self.learner.save(folder)
        self.events.append(CheckpointSaved(step=step, version=version, position=1, uri=folder.as_uri(), digest="", seconds=0.0))

    def step(self, *, boundary: bool = False) -> None:
        train(self.learner, self.learner.step + 1)
        version = (self.learner.step - 1) // 2
        self.events.append(StepDone(step=self.learner.step, version=version, is_boundary=boundary, num_samples=4, seconds={}, metrics={}))

    def write(self, model: str | None = None) -> None:
        config = make_config({"model": {"path": model or str(self.model)}, "async_training": {"total_steps": 8}} | engine(model), "test")
        plan = plan_run(config, RUN, Machine((0, 1)))
        store = MemoryStore.create(plan, 1)
        store.write("trainer", 1, [Draft(event, derived=False, cause=0, at=1) for event in self.events])
        with Recorder.open(self.folder, RUN, store.log_id) as recorder:
            recorder.append(store.entries)
        write_info(self.folder, RUN, None, {})


def engine(model: str | None) -> dict[str, object]:
    return {"rollout": {"engine": "scripted"}} if model == "scripted" else {}


@pytest.fixture(params=[""])
def recorded(tmp_path: Path, request: pytest.FixtureRequest) -> Recorded:
    """Versions 0 to 3: 1 is only in a checkpoint, 2 is gone, 3 is published; a checkpoint in the middle of a cycle names version 2."""
    model = save_tiny_qwen2(tmp_path / "model", hidden_size=16)
    tokenizer().save_pretrained(model)
    run = Recorded(tmp_path / "runs" / RUN, model, dtype=request.param)
    run.publish(0)
    for version in (1, 2, 3):
        run.step()
        if version == 3:
            run.save(2)
        run.step(boundary=True)
        run.publish(version)
        if version == 1:
            run.save(1)
    run.write()
    return run


@pytest.fixture
def export(recorded: Recorded) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        app = build_app(lambda _: 0)
        return CliRunner().invoke(app, ["export", RUN, "--runs", str(recorded.folder.parent), *arguments], env={"REDIS_URL": ""})

    return call


def loaded(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    return model


def digest_of(model: PreTrainedModel) -> str:
    return weights_digest({name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"})


@pytest.mark.parametrize(("version", "source"), [(1, "checkpoint"), (3, "the published weights")])
def test_a_version_is_exported_from_where_it_is_and_loads_as_a_model(
    recorded: Recorded, export: Callable[..., Result], tmp_path: Path, version: int, source: str
) -> None:
    done = export("--version", str(version), "--to", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert f"version {version} of run {RUN} (step {2 * version}, from {source}" in done.output
    assert digest_of(loaded(tmp_path / "out")) == recorded.digests[version]
    words = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out", local_files_only=True)
    assert words("w5 w7").input_ids == [5, 7]


@pytest.mark.parametrize("recorded", ["bfloat16"], indirect=True)
@pytest.mark.parametrize("version", [1, 3])
def test_what_was_rounded_when_it_was_published_is_exported_so_from_a_checkpoint_too(
    recorded: Recorded, export: Callable[..., Result], tmp_path: Path, version: int
) -> None:
    done = export("--version", str(version), "--to", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert loaded(tmp_path / "out").dtype == torch.bfloat16
    assert digest_of(loaded(tmp_path / "out")) == recorded.digests[version]


def test_without_a_version_the_newest_goes_into_the_runs_folder(recorded: Recorded, export: Callable[..., Result]) -> None:
    assert export().exit_code == 0
    assert digest_of(loaded(recorded.folder / "export-v3")) == recorded.digests[3]


def test_the_configuration_says_which_type_the_weights_have(recorded: Recorded, export: Callable[..., Result], tmp_path: Path) -> None:
    path = recorded.model / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in config.items() if key != "dtype"} | {"torch_dtype": "bfloat16"}))
    assert export("--to", str(tmp_path / "out")).exit_code == 0
    assert loaded(tmp_path / "out").dtype == torch.float32
    assert "torch_dtype" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_a_run_whose_folder_was_moved_is_exported_from_where_it_is_now(recorded: Recorded, tmp_path: Path) -> None:
    moved = tmp_path / "archive" / "renamed"
    moved.parent.mkdir()
    shutil.move(recorded.folder, moved)
    for version in (1, 3):
        done = CliRunner().invoke(build_app(lambda _: 0), ["export", str(moved), "--version", str(version)], env={"REDIS_URL": ""})
        assert done.exit_code == 0, done.output
        assert digest_of(loaded(moved / f"export-v{version}")) == recorded.digests[version]


def test_a_version_that_is_gone_or_never_was_names_those_there_are(export: Callable[..., Result]) -> None:
    """Version 2 is named by a checkpoint in the middle of a cycle, which holds other weights."""
    gone, never = export("--version", "2"), export("--version", "7")
    assert (gone.exit_code, never.exit_code) == (2, 2)
    assert f"version 2 of run {RUN} is gone; those that can be exported: 1, 3; version 0 is the model it began with" in gone.output
    assert f"version 7 of run {RUN} was never published; those that can be exported: 1, 3" in never.output


def test_a_run_with_nothing_left_says_so(recorded: Recorded, export: Callable[..., Result]) -> None:
    shutil.rmtree(recorded.folder / "weights")
    shutil.rmtree(recorded.folder / "checkpoints")
    done = export()
    assert done.exit_code == 2
    assert f"no version of run {RUN} is there to be exported; none can be exported any more" in done.output


def test_torn_weights_are_not_exported(recorded: Recorded, export: Callable[..., Result]) -> None:
    (weights,) = (recorded.folder / "weights").iterdir()
    weights.write_bytes(weights.read_bytes()[:-100])
    done = export("--version", "3")
    assert done.exit_code == 2
    assert "version 3 cannot be exported: weights file" in done.output
    assert not (recorded.folder / "export-v3").exists()


def test_a_folder_that_is_there_is_never_written_over(recorded: Recorded, export: Callable[..., Result]) -> None:
    (recorded.folder / "export-v3").mkdir()
    done = export()
    assert done.exit_code == 2
    assert "export-v3 is there already" in done.output
    assert list((recorded.folder / "export-v3").iterdir()) == []


def test_a_model_folder_that_is_gone_is_named(recorded: Recorded, export: Callable[..., Result]) -> None:
    shutil.rmtree(recorded.model)
    done = export()
    assert done.exit_code == 2
    assert f"the run began with the model in {recorded.model}, which has no config.json any more" in done.output


def test_a_run_without_a_model_has_nothing_to_export(tmp_path: Path) -> None:
    run = Recorded(tmp_path / "runs" / RUN, save_tiny_qwen2(tmp_path / "model", hidden_size=16))
    run.write(model="scripted")
    done = CliRunner().invoke(build_app(lambda _: 0), ["export", RUN, "--runs", str(tmp_path / "runs")], env={"REDIS_URL": ""})
    assert done.exit_code == 2
    assert f"run {RUN} has no model" in done.output
