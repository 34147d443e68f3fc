"""Where TRL has a formula of ours, both give the same numbers for the same batch.

TRL computes them inside of its trainers' steps, so one is run. It has no REINFORCE++, and k1 only as a part of RLOO's rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from trl.rewards.other_rewards import get_soft_overlong_punishment

from services.learner.advantages import EPSILON, estimate_advantages
from services.learner.overlong import soft_overlong_punishment
from services.samples import SampleGroup
from tests.services.learner.factories import make_batch, save_tiny_qwen2
from tests.services.learner.slow import deviation_of
from tests.services.learner.slow_step import model_in_float64
from tests.services.learner.test_hf import make_learner, plan
from tests.services.learner.trl_step import Tensors, answers_of, trl_grpo, trl_rloo

pytestmark = pytest.mark.filterwarnings("ignore")

TRL_EPSILON = 1e-4
LONGEST = 9


@pytest.fixture(scope="module")
def batch() -> list[SampleGroup]:
    return make_batch(21)


def padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0.0] * (longest - len(row))] for row in rows])


def rollout_logprobs(batch: Sequence[SampleGroup]) -> torch.Tensor:
    return padded([answer.logprobs for answer in answers_of(batch)])


def rewards_of(batch: Sequence[SampleGroup]) -> list[list[float]]:
    return [[answer.reward for answer in group.answers] for group in batch]


def lengths_of(batch: Sequence[SampleGroup]) -> list[list[int]]:
    return [[len(answer.tokens) for answer in group.answers] for group in batch]


def flat(groups: Sequence[Sequence[float]]) -> list[float]:
    return [value for group in groups for value in group]


def test_group_advantages_are_those_of_trl_up_to_its_epsilon(tiny_model: Path, tmp_path: Path, batch: list[SampleGroup]) -> None:
    theirs = trl_grpo(tmp_path, tiny_model, batch, {}).inputs["advantages"].tolist()
    deviations = flat([[deviation_of(group)] * len(group) for group in rewards_of(batch)])
    corrected = [value * (std + TRL_EPSILON) / (std + EPSILON) for value, std in zip(theirs, deviations, strict=True)]
    assert flat(estimate_advantages("grpo", rewards_of(batch), lengths_of(batch))) == pytest.approx(corrected, abs=1e-5)


def test_leave_one_out_advantages_are_those_of_trl(tiny_model: Path, tmp_path: Path, batch: list[SampleGroup]) -> None:
    """Sorted, for the trainer shuffles answers of its own, which differ from ours in all but the reward."""
    theirs = sorted(trl_rloo(tmp_path, tiny_model, batch).inputs["advantages"].tolist())
    assert sorted(flat(estimate_advantages("rloo", rewards_of(batch), lengths_of(batch)))) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"loss_agg_mode": "token-mean", "entropy_coeff": 0.2}, {"loss_type": "dapo", "entropy_coef": 0.2}),
        ({"loss_agg_mode": "seq-mean-token-mean", "clip_high": 0.4}, {"loss_type": "grpo", "epsilon_high": 0.4}),
        ({"loss_agg_mode": "seq-mean-token-sum-norm", "max_response_length": LONGEST}, {"loss_type": "dr_grpo"}),
    ],
)
def test_loss_and_gradient_are_those_of_trl(
    tiny_model: Path, tmp_path: Path, batch: list[SampleGroup], ours: dict[str, object], theirs: dict[str, object]
) -> None:
    """Against the rollout's log-probabilities, so that the clip has something to do; without the deviation, whose epsilon differs."""
    replaced = {"old_per_token_logps": rollout_logprobs(batch)}
    seen = trl_grpo(tmp_path, tiny_model, batch, replaced, scale_rewards="none", epsilon=0.2, **theirs)
    assert seen.inputs["advantages"].tolist() == pytest.approx(
        flat(estimate_advantages("grpo", rewards_of(batch), lengths_of(batch), by_std=False)), abs=1e-6
    )
    learner = make_learner(tiny_model, norm_adv_by_std_in_grpo=False, **ours)
    metrics = learner.train(1, batch, plan(batch)).metrics
    assert metrics["actor/clip_fraction"] > 0
    assert metrics["actor/loss"] == pytest.approx(seen.loss, rel=1e-4, abs=1e-7)
    assert metrics["actor/grad_norm"] == pytest.approx(seen.grad_norm, rel=1e-4)


def test_the_divergence_from_a_reference_is_that_of_trl(tiny_model: Path, tmp_path: Path, batch: list[SampleGroup]) -> None:
    """Our policy is taken away from the reference by a step; TRL's is that policy."""
    learner = make_learner(tiny_model, norm_adv_by_std_in_grpo=False, use_kl_loss=True, kl_loss_coef=0.7, lr=5e-3)
    learner.train(1, batch, plan(batch))
    moved = save_tiny_qwen2(tmp_path / "moved")
    model_in_float64(tiny_model, dict(learner.weights())).float().save_pretrained(moved)
    settings = {"beta": 0.7, "use_bias_correction_kl": False, "scale_rewards": "none", "loss_type": "dapo"}
    seen = trl_grpo(tmp_path, moved, batch, reference_and_old(tiny_model, batch), **settings)
    metrics = learner.train(2, batch, plan(batch)).metrics
    assert metrics["actor/kl"] > 0.01
    assert metrics["actor/loss"] == pytest.approx(seen.loss, rel=1e-4, abs=1e-7)
    assert metrics["actor/grad_norm"] == pytest.approx(seen.grad_norm, rel=1e-4)


def reference_and_old(model: Path, batch: Sequence[SampleGroup]) -> Tensors:
    reference = model_in_float64(model)
    rows = []
    for group in batch:
        for answer in group.answers:
            logits = reference(input_ids=torch.tensor([group.prompt_tokens + answer.tokens])).logits[0].detach()
            logprobs = logits.log_softmax(-1)[len(group.prompt_tokens) - 1 :]
            rows.append([float(logprobs[place][token]) for place, token in enumerate(answer.tokens)])
    return {"ref_per_token_logps": padded(rows), "old_per_token_logps": rollout_logprobs(batch)}


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("limit", ["truncate", "mask"])
def test_importance_weights_are_those_of_trl(tiny_model: Path, tmp_path: Path, batch: list[SampleGroup], level: str, limit: str) -> None:
    theirs = {"vllm_importance_sampling_mode": f"{level}_{limit}", "vllm_importance_sampling_clip_max": 3.0}
    if limit == "mask":
        theirs["vllm_importance_sampling_clip_min"] = 0.25
    seen = trl_grpo(tmp_path, tiny_model, batch, {}, sampling=True, scale_rewards="none", loss_type="dapo", **theirs)
    limits = {"rollout_is": level, "rollout_is_limit": limit, "rollout_is_threshold": 3.0, "rollout_is_threshold_low": 0.25}
    learner = make_learner(tiny_model, norm_adv_by_std_in_grpo=False, old_logprobs="recompute", **limits)
    metrics = learner.train(1, batch, plan(batch)).metrics
    weights = seen.inputs["importance_sampling_ratio"].expand(-1, LONGEST)[padded_mask(batch)]
    assert 0 < metrics["rollout/is_weight_limited"] < 1
    assert metrics["rollout/is_weight_mean"] == pytest.approx(weights.mean().item(), rel=1e-4)
    assert metrics["actor/loss"] == pytest.approx(seen.loss, rel=1e-4, abs=1e-7)
    assert metrics["actor/grad_norm"] == pytest.approx(seen.grad_norm, rel=1e-4)


def padded_mask(batch: Sequence[SampleGroup]) -> torch.Tensor:
    return padded([[1.0] * len(answer.tokens) for answer in answers_of(batch)]).bool()


@pytest.mark.parametrize("length", [0, 5, 12, 13, 16, 20, 25])
def test_the_overlong_punishment_is_that_of_trl(length: int) -> None:
    theirs = get_soft_overlong_punishment(max_completion_len=20, soft_punish_cache=8)([[7] * length])
    assert soft_overlong_punishment(length, 20, 8, 1.0) == pytest.approx(theirs[0])
