"""Parameters that no token of a batch was sent to stay as they are, with ranks as without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.qwen2 import modeling_qwen2

from services.learner.config import LearnerConfig
from services.learner.hf import HfLearner
from services.learner.sharded.lead import ShardedLearner
from tests.services.learner.factories import save_tiny_qwen2
from tests.services.learner.test_hf import train
from tests.services.learner.test_sharded import assert_alike, assert_measured_alike


class MLPWithExperts(torch.nn.Module):
    """One expert gets every token, one gets none, one gets them and makes nothing of them."""

    def __init__(self, config: object) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        used: torch.Tensor = self.experts[0](x) + 0.0 * self.experts[2](x)
        return used


def test_an_expert_without_tokens_has_no_gradient_and_one_whose_gradient_is_zero_decays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_qwen2, "Qwen2MLP", MLPWithExperts)
    model = save_tiny_qwen2(tmp_path / "experts", hidden_size=32)
    given = {"model": str(model), "lr": 1e-2, "num_threads": 1, "weight_decay": 0.1, "epochs": 2}
    alone = HfLearner(LearnerConfig.model_validate(given), total_steps=10)
    initial = {name: tensor.clone() for name, tensor in alone.weights().items()}
    ranks = ShardedLearner(LearnerConfig.model_validate(given), total_steps=10)
    try:
        for step in (1, 2):
            assert_measured_alike(train(ranks, step).metrics, train(alone, step).metrics)
        assert_alike(ranks, alone)
        weights = ranks.weights()
        changed = {name: not torch.equal(weights[name], initial[name]) for name in weights if "experts" in name}
    finally:
        ranks.close()
    assert changed == {name: "experts.1" not in name for name in changed}
    assert len(changed) == 6
