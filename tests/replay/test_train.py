"""`swingshift replay train`: the same bits from the recorded samples, the first version that differs, and curves of other settings."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from typer.testing import CliRunner, Result

from bus.events import WeightsPublished
from bus.payload_recording import FILE_NAME
from replay.cli import app
from replay.curves import sparklines
from services.learner.digests import weights_digest
from services.learner.planned import planned_settings
from tests.replay.trained import Trained, plan_of
from tests.services.learner.factories import save_tiny_qwen2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_qwen2(tmp_path_factory.mktemp("model") / "tiny", hidden_size=16)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Six steps, three versions after the initial one; checkpoints after steps 2 and 3."""
    return Trained(tmp_path_factory.mktemp("trained"), plan_of(str(model), old_logprobs="recompute")).train(6, checkpoints=(2, 3)).record()


@pytest.fixture
def folder(tmp_path: Path, recorded: Path) -> Path:
    """A copy that may be tampered with."""
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def train(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["train", *(str(argument) for argument in arguments)])


def test_every_version_is_trained_again_bit_for_bit(folder: Path) -> None:
    result = train(folder)
    assert result.exit_code == 0, result.output
    assert "6 steps trained again from 24 recorded samples" in result.output
    assert "beginning with the initial weights" in result.output
    assert "passed: 4 versions, 0 to 3, are bit for bit as published" in result.output
    assert "environment" not in result.output


def test_it_begins_with_the_newest_checkpoint_at_or_before_a_version_also_where_the_folder_was_moved(folder: Path) -> None:
    result = train(folder, "--from-version", 1, "--to-version", 2)
    assert result.exit_code == 0, result.output
    assert "2 steps trained again from 8 recorded samples" in result.output
    assert "beginning with the checkpoint of step 2" in result.output
    within = train(folder, "--from-version", 2)
    assert within.exit_code == 0, within.output
    assert "beginning with the checkpoint of step 3" in within.output  # which lies within a cycle


def test_a_torn_checkpoint_is_skipped_for_the_one_before(folder: Path) -> None:
    (folder / "checkpoints" / "checkpoint-e1-s3" / "optimizer.safetensors").write_bytes(b"torn")
    result = train(folder, "--from-version", 2)
    assert result.exit_code == 0, result.output
    assert "beginning with the checkpoint of step 2" in result.output


def test_the_first_version_that_differs_is_named_with_those_before_and_the_measure_it_shows_in(tmp_path: Path, model: Path) -> None:
    folder = Trained(tmp_path / "run", plan_of(str(model))).train(2).with_settings(lr=2e-3).train(6).record()
    result = train(folder, "-o", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "FAILED: version 2 (step 4) has other weights than were published" in result.output
    assert "2 versions, 0 to 1, are bit for bit as published" in result.output
    assert "the first other measure is actor/lr of step 3: 0.002 then, 0.001 now" in result.output
    assert "likely: other code of the learner" in result.output
    written = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert not written["passed"]
    assert [version["version"] for version in written["versions"]] == [0, 1, 2]


def test_the_environment_is_compared_first_and_named_as_the_likely_cause(tmp_path: Path, model: Path) -> None:
    plan = plan_of(str(model))
    plan = plan.model_copy(update={"environment": {**plan.environment, "torch": "1.0.0"}})
    result = train(Trained(tmp_path, plan).train(2).with_settings(lr=2e-3).train(4).record())
    assert result.exit_code == 1, result.output
    told, _, rest = result.output.partition("\n")
    assert told.startswith("environment: torch was 1.0.0, here it is ")
    assert "likely: torch, which was 1.0.0" in rest


def test_another_initial_model_is_found_before_anything_is_trained(folder: Path) -> None:
    """The copy in the run's folder goes before the path that the run was given."""
    save_tiny_qwen2(folder / "weights" / "initial", hidden_size=16, seed=9)
    result = train(folder)
    assert result.exit_code == 1, result.output
    assert "0 steps trained again" in result.output
    assert "FAILED: version 0 (step 0) has other weights" in result.output
    assert "likely: the initial model is another one than the run began with" in result.output


def test_a_version_that_was_published_again_counts_with_its_newest_revision_and_its_first_step(tmp_path: Path, model: Path) -> None:
    run = Trained(tmp_path, plan_of(str(model))).train(3)
    first = next(event for entry in run.store.entries if isinstance(event := entry.event, WeightsPublished) and event.version == 1)
    run.append(first.model_copy(update={"revision": 1}))
    assert train(run.train(4).record()).exit_code == 0


def test_a_version_that_was_published_again_with_other_weights_is_explained_by_the_redo(tmp_path: Path, model: Path) -> None:
    run = Trained(tmp_path, plan_of(str(model))).train(3)
    first = next(event for entry in run.store.entries if isinstance(event := entry.event, WeightsPublished) and event.version == 1)
    run.append(first.model_copy(update={"revision": 1, "digest": "0"}))
    assert "likely: what RedoDiverged in the log says" in train(run.record()).output


def test_other_settings_give_curves_beside_the_recorded_ones_and_a_model_folder(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = train(folder, "--set", "actor.lr=1e-2", "--set", "actor.max_grad_norm=0.5", "--from-version", 1, "-o", out)
    assert result.exit_code == 0, result.output
    assert "with actor.lr=1e-2, actor.max_grad_norm=0.5 from version 1 on: not compared" in result.output
    for label in ("loss", "reward", "KL to sampling", "gradient norm", "learning rate"):
        assert label in result.output
    written = json.loads((out / "metrics.json").read_text())
    assert [step["changed"] for step in written["steps"]] == [True] * 4
    assert {(step["recorded"]["actor/lr"], step["now"]["actor/lr"]) for step in written["steps"]} == {(1e-3, 1e-2)}
    assert [step["now"]["rollout/mean_reward"] for step in written["steps"]] == [
        step["recorded"]["rollout/mean_reward"] for step in written["steps"]
    ]
    assert train(folder, "-o", out).exit_code == 2  # it is there already


def test_the_weights_that_are_written_are_those_of_the_last_version(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert train(folder, "--to-version", 2, "-o", out).exit_code == 0
    versions = json.loads((out / "metrics.json").read_text())["versions"]
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(out / "model", local_files_only=True)
    weights = {name: tensor for name, tensor in loaded.state_dict().items() if name != "lm_head.weight"}
    assert [version["version"] for version in versions] == [0, 1, 2]
    assert weights_digest(weights) == versions[-1]["recorded"]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("data.seed=4", "the samples are the recorded ones; only settings of the learner can be changed here, such as actor.lr"),
        ("monitor.trackers=[]", "it has no effect on how the recorded samples are trained"),
        ("actor.temperature=2", "the recorded answers were sampled at the recorded temperature"),
        ("actor.lrr=2", "actor.lrr is no setting: did you mean actor.lr?"),
        ("actor.lr=fast", "actor.lr is 'fast'"),
        ("actor.lr=-1", "actor.lr is -1"),
        ("lr", "it must be of the form actor.name=value"),
    ],
)
def test_settings_that_are_not_the_learners_are_refused_with_the_reason(recorded: Path, setting: str, why: str) -> None:
    result = train(recorded, "--set", setting)
    assert result.exit_code == 2
    assert why in result.output


def test_a_learning_rate_that_breaks_the_weights_ends_with_the_step_it_broke_in(folder: Path) -> None:
    result = train(folder, "--set", "actor.lr=1.0", "--set", "actor.max_grad_norm=1e30", "--set", "actor.policy_loss=unclipped")
    assert result.exit_code in (0, 1), result.output
    assert ("FAILED: step" in result.output) == (result.exit_code == 1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--from-version", 7), "--from-version 7: the run published the versions 0 to 3"),
        (("--from-version", 2, "--to-version", 2), "there is nothing to train from version 2 to version 2"),
    ],
)
def test_versions_that_are_not_there_are_refused(recorded: Path, options: tuple[object, ...], why: str) -> None:
    result = train(recorded, *options)
    assert result.exit_code == 2
    assert why in result.output


def test_a_payload_that_is_gone_is_named(folder: Path) -> None:
    with sqlite3.connect(folder / FILE_NAME) as payloads:
        payloads.execute("DELETE FROM payloads WHERE name = 'sample:3001'")
    payloads.close()
    result = train(folder)
    assert result.exit_code == 2
    assert "payload 'sample:3001' is not in" in result.output


def test_a_scripted_run_is_trained_again_and_has_no_settings(tmp_path: Path) -> None:
    folder = Trained(tmp_path / "run", plan_of("scripted")).train(4, checkpoints=(2,)).record()
    assert "3 versions, 0 to 2, are bit for bit as published" in train(folder).output
    result = train(folder, "--from-version", 1, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["metrics.json"]
    refused = train(folder, "--set", "actor.lr=1")
    assert refused.exit_code == 2
    assert "the run was scripted" in refused.output


def test_curves_share_one_scale_and_leave_out_what_is_no_number() -> None:
    assert sparklines([0.0, 1.0, float("nan")], [2.0], 8) == ("▁▅ ", "█")
    assert sparklines([3.0] * 100, [3.0], 8) == ("▁" * 8, "▁")
    assert sparklines([], [], 8) == ("", "")


@pytest.fixture(scope="module")
def of_a_cluster(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """As if 16 ranks on GPUs of several machines had trained it."""
    plan = plan_of(str(model), device="cuda", ranks=16)
    plan = plan.model_copy(update={"devices": {"trainer": ",".join(f"cuda:{gpu}" for gpu in range(40, 56)), "replica:s0": "cuda:0"}})
    settings = planned_settings(plan)
    assert settings is not None
    here = settings.model_copy(update={"device": "cpu", "ranks": 1})
    return Trained(tmp_path_factory.mktemp("cluster"), plan, here).train(4).record()


def test_a_run_of_many_gpus_says_how_it_can_be_trained_again_with_fewer(of_a_cluster: Path) -> None:
    result = train(of_a_cluster)
    assert result.exit_code != 0
    words = "--set actor.ranks=" if torch.cuda.is_available() else "--set actor.device=cpu --set actor.dtype=float32 --set actor.ranks=1"
    assert words in " ".join(result.output.split())


def test_a_run_of_many_gpus_is_trained_again_by_one_rank_on_cores(of_a_cluster: Path) -> None:
    result = train(of_a_cluster, "--set", "actor.device=cpu", "--set", "actor.dtype=float32", "--set", "actor.ranks=1")
    assert result.exit_code == 0, result.output
    assert "4 steps trained again from 16 recorded samples" in result.output
    assert "from version 0 on: not compared with what was published" in result.output
