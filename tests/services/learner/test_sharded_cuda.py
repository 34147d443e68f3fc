"""Several ranks on GPUs, where there are as many; with one GPU, one rank, which takes the same way through NCCL and FSDP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from services.learner.config import LearnerConfig
from services.learner.digests import weights_digest
from services.learner.hf import HfLearner
from services.learner.sharded.lead import ShardedLearner
from tests.services.learner.test_hf import train
from tests.services.learner.test_sharded import RICH, assert_alike, assert_measured_alike

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def settings(model: Path, ranks: int, **more: object) -> LearnerConfig:
    return LearnerConfig.model_validate({"model": str(model), "lr": 1e-3, "num_threads": 1, "device": "cuda", "ranks": ranks} | RICH | more)


@pytest.fixture(params=[1, 2])
def ranks(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    if torch.cuda.device_count() < number:
        pytest.skip(f"needs {number} CUDA devices")
    return number


@pytest.fixture
def learner(tiny_model: Path, ranks: int) -> Iterator[ShardedLearner]:
    """Begins while its devices are lent."""
    made = ShardedLearner(settings(tiny_model, ranks), total_steps=10, offloaded=True)
    yield made
    made.close()


def test_ranks_on_gpus_train_as_one_learner_does(learner: ShardedLearner, tiny_model: Path) -> None:
    alone = HfLearner(settings(tiny_model, 1), total_steps=10)
    learner.reload()
    for step in (1, 2, 3):
        assert_measured_alike(train(learner, step).metrics, train(alone, step).metrics)
    assert_alike(learner, alone)


def test_leaving_the_gpus_frees_them_and_coming_back_changes_no_bit(learner: ShardedLearner, tmp_path: Path) -> None:
    before = torch.cuda.memory_allocated()
    learner.reload()
    train(learner, 1)
    learner.save(tmp_path / "home")
    digest = weights_digest(learner.weights())
    expected = train(learner, 2).metrics
    after = weights_digest(learner.weights())
    learner.load(tmp_path / "home")
    learner.offload()
    assert torch.cuda.memory_allocated() < before + 16 * 2**20  # workspaces of the libraries may stay
    assert weights_digest(learner.weights()) == digest
    learner.save(tmp_path / "away")
    learner.reload()
    assert train(learner, 2).metrics == expected
    assert weights_digest(learner.weights()) == after
    learner.load(tmp_path / "away")
    assert weights_digest(learner.weights()) == digest
