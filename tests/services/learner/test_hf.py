"""One step of the Hugging Face learner against a slow one, and what it refuses."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from bus.errors import ConfigError, LearnerError
from services.learner.config import LearnerConfig
from services.learner.digests import weights_digest
from services.learner.hf import HfLearner
from services.learner.micro_batches import plan_micro_batches
from services.learner.protocol import Learner, StepReport
from services.samples import SampleGroup
from tests.services.learner.factories import make_answer, make_batch, save_tiny_qwen2
from tests.services.learner.slow import mean_of
from tests.services.learner.slow_step import SlowStep, model_in_float64


def make_learner(model: Path, **settings: object) -> HfLearner:
    return HfLearner(LearnerConfig.model_validate({"model": str(model), "lr": 1e-3, "num_threads": 1, **settings}), total_steps=10)


def plan(batch: Sequence[SampleGroup], budget: int = 40) -> list[list[int]]:
    return plan_micro_batches([group.num_tokens for group in batch], budget)


def train(learner: Learner, step: int, seed: int | None = None) -> StepReport:
    batch = make_batch(step if seed is None else seed)
    return learner.train(step, batch, plan(batch))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"adv_estimator": "rloo", "policy_loss": "unclipped"},
        {"adv_estimator": "reinforce_plus_plus", "loss_agg_mode": "seq-mean-token-mean"},
        {"norm_adv_by_std_in_grpo": False, "loss_agg_mode": "seq-mean-token-sum-norm", "max_response_length": 9},
        {
            "overlong_buffer_len": 5,
            "overlong_penalty_factor": 0.5,
            "max_response_length": 8,
            "adv_estimator": "reinforce_plus_plus_baseline",
        },
        {"old_logprobs": "recompute", "rollout_is_threshold": 1.2},
        {"old_logprobs": "recompute", "rollout_is": "sequence", "rollout_is_limit": "mask", "rollout_is_threshold": 20.0},
        {"old_logprobs": "recompute", "rollout_is": "none", "entropy_coeff": 0.3},
        {"clip_low": 0.1, "clip_high": 0.5, "temperature": 0.7, "gradient_checkpointing": True},
    ],
)
def test_loss_gradient_entropy_and_update_equal_those_of_a_slow_step(tiny_model: Path, layout: str, settings: dict[str, object]) -> None:
    learner = make_learner(tiny_model, layout=layout, max_grad_norm=0.05, **settings)
    config = LearnerConfig.model_validate({"model": str(tiny_model), **settings})
    batch = make_batch(11)
    slow = SlowStep(model_in_float64(tiny_model), batch, config)
    metrics = learner.train(1, batch, plan(batch)).metrics
    check_measures(metrics, slow)
    scale = min(1.0, 0.05 / slow.grad_norm)
    weights = learner.weights()
    for name, parameter in slow.model.named_parameters():
        assert parameter.grad is not None
        gradient = parameter.grad * scale
        expected = parameter.detach() * (1 - 1e-3 * 0.01) - 1e-3 * gradient / (gradient.abs() + 1e-8)
        # AdamW's first update has the size of the rate wherever the gradient is far above epsilon; below, rounding decides.
        clear = gradient.abs() > 1e-6
        torch.testing.assert_close(weights[name][clear].double(), expected[clear], atol=2e-5, rtol=0)


def check_measures(metrics: Mapping[str, float], slow: SlowStep) -> None:
    assert metrics["actor/loss"] == pytest.approx(slow.loss.item(), rel=1e-4, abs=1e-6)
    assert metrics["actor/grad_norm"] == pytest.approx(slow.grad_norm, rel=1e-4)
    assert metrics["actor/entropy"] == pytest.approx(mean_of(slow.entropies), rel=1e-5)
    assert metrics["rollout/logprob_diff_mean"] == pytest.approx(mean_of(slow.differences), rel=1e-5)
    assert metrics["rollout/logprob_diff_max"] == pytest.approx(max(slow.differences), rel=1e-5)
    assert metrics["actor/clip_fraction_low"] == pytest.approx(slow.clipped.count("low") / len(slow.clipped))
    assert metrics["actor/clip_fraction_high"] == pytest.approx(slow.clipped.count("high") / len(slow.clipped))
    assert metrics["actor/clip_fraction"] == pytest.approx(metrics["actor/clip_fraction_low"] + metrics["actor/clip_fraction_high"])
    assert metrics.get("rollout/is_weight_mean", 1.0) == pytest.approx(mean_of(slow.weights), rel=1e-4)
    if slow.divergences:
        assert metrics["actor/kl"] == pytest.approx(mean_of(slow.divergences), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize(
    "settings",
    [
        {"use_kl_loss": True, "kl_loss_coef": 0.5},
        {"use_kl_loss": True, "kl_loss_coef": 0.5, "kl_loss_type": "k1"},
        {"old_logprobs": "recompute", "rollout_is_threshold": 1.5, "clip_low": 0.05, "clip_high": 0.05},
        {
            "old_logprobs": "recompute",
            "rollout_is": "sequence",
            "rollout_is_threshold": 3.0,
            "use_kl_loss": True,
            "kl_loss_coef": 0.0,
            "entropy_coeff": 0.1,
            "loss_agg_mode": "seq-mean-token-mean",
        },
    ],
)
def test_a_later_step_of_a_cycle_equals_a_slow_one_against_its_start_and_the_initial_weights(
    tiny_model: Path, layout: str, settings: dict[str, object]
) -> None:
    learner = make_learner(tiny_model, layout=layout, lr=2e-3, **settings)
    train(learner, 1)
    learner.begin_cycle()
    cycle_start = {name: weights.clone() for name, weights in learner.weights().items()}
    train(learner, 2)
    train(learner, 3)
    config = LearnerConfig.model_validate({"model": str(tiny_model), **settings})
    current = model_in_float64(tiny_model, dict(learner.weights()))
    reference = model_in_float64(tiny_model) if config.use_kl_loss else None
    batch = make_batch(4)
    slow = SlowStep(current, batch, config, model_in_float64(tiny_model, cycle_start), reference)
    metrics = learner.train(4, batch, plan(batch)).metrics
    check_measures(metrics, slow)
    assert metrics["actor/ppo_kl"] != 0.0


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_loss_is_the_mean_over_the_tokens_of_the_batch_however_it_is_split(tiny_model: Path, layout: str) -> None:
    batch = make_batch(3, num_groups=6)
    reports = [make_learner(tiny_model, layout=layout).train(1, batch, plan(batch, budget)).metrics for budget in (1, 60, 100000)]
    for name in ("actor/loss", "actor/grad_norm", "actor/entropy", "rollout/logprob_diff_mean"):
        assert reports[1][name] == pytest.approx(reports[0][name], rel=1e-4)
        assert reports[2][name] == pytest.approx(reports[0][name], rel=1e-4)


def test_a_sample_over_the_bound_is_cut_without_changing_the_loss(tiny_model: Path) -> None:
    batch = make_batch(4, num_groups=2, num_answers=6)
    whole = make_learner(tiny_model).train(1, batch, [[0, 1]]).metrics
    pieces = make_learner(tiny_model, max_tokens_per_micro_batch=8).train(1, batch, [[0, 1]]).metrics
    assert pieces["actor/loss"] == pytest.approx(whole["actor/loss"], rel=1e-4)
    assert pieces["actor/grad_norm"] == pytest.approx(whole["actor/grad_norm"], rel=1e-4)


def test_the_same_batches_give_the_same_bits_and_others_do_not(tiny_model: Path) -> None:
    first, second, other = (make_learner(tiny_model) for _ in range(3))
    for step in (1, 2, 3):
        assert train(first, step).metrics == train(second, step).metrics
        train(other, step, seed=50 + step)
    assert weights_digest(first.weights()) == weights_digest(second.weights()) != weights_digest(other.weights())


def test_another_process_with_another_hash_seed_gets_the_same_bits(tiny_model: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.services.learner.test_hf import make_learner, train, weights_digest;"
        "learner = make_learner(Path(sys.argv[1])); train(learner, 1); train(learner, 2);"
        "sys.stdout.write(weights_digest(learner.weights()))"
    )
    learner = make_learner(tiny_model)
    train(learner, 1)
    train(learner, 2)
    environment = {"PYTHONHASHSEED": "77", "PATH": "", "TZ": "Asia/Kolkata"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_model)], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == weights_digest(learner.weights())


def test_the_schedule_sets_the_rate_and_reports_it(tiny_model: Path) -> None:
    learner = make_learner(tiny_model, lr_schedule="linear", lr_warmup_steps=1)
    assert [train(learner, step).metrics["actor/lr"] for step in (1, 2, 3)] == pytest.approx([5e-4, 1e-3, 1e-3 * 8 / 9])


def test_the_scheduled_rate_is_the_one_applied(tiny_model: Path) -> None:
    full = make_learner(tiny_model, weight_decay=0.0)
    tenth = make_learner(tiny_model, weight_decay=0.0, lr_warmup_steps=9)
    start = {name: tensor.clone() for name, tensor in full.weights().items()}
    train(full, 1)
    train(tenth, 1)
    for name, before in start.items():
        torch.testing.assert_close(tenth.weights()[name] - before, (full.weights()[name] - before) / 10, atol=1e-6, rtol=1e-3)


def test_several_epochs_clip_against_the_same_old_log_probabilities(tiny_model: Path) -> None:
    once = train(make_learner(tiny_model, old_logprobs="recompute"), 1).metrics
    thrice = train(make_learner(tiny_model, old_logprobs="recompute", epochs=3, lr=5e-3), 1).metrics
    assert once["actor/ratio_mean"] == 1.0
    assert once["actor/clip_fraction"] == 0.0
    assert thrice["actor/clip_fraction"] > 0
    assert thrice["rollout/logprob_diff_mean"] == once["rollout/logprob_diff_mean"]


def test_a_report_names_what_a_user_watches(tiny_model: Path) -> None:
    report = train(make_learner(tiny_model), 1)
    actor = {"loss", "pg_loss", "grad_norm", "lr", "entropy", "ppo_kl", "ratio_mean"}
    actor |= {"clip_fraction", "clip_fraction_low", "clip_fraction_high"}
    rollout = {"mean_reward", "reward_std", "mean_tokens", "logprob_diff_mean", "logprob_diff_max"}
    rollout |= {f"logprob_diff_same_version_{name}" for name in ("mean", "max", "kl", "tokens")}
    assert set(report.metrics) == {f"actor/{name}" for name in actor} | {f"rollout/{name}" for name in rollout}
    assert set(report.seconds) == {"forward_backward", "optimizer"}


def test_a_report_names_what_is_measured_only_where_it_is_asked_for(tiny_model: Path) -> None:
    plain = set(train(make_learner(tiny_model), 1).metrics)
    settings = {"old_logprobs": "recompute", "use_kl_loss": True, "overlong_buffer_len": 4, "max_response_length": 9}
    everything = train(make_learner(tiny_model, **settings), 1).metrics
    more = {"is_weight_mean", "is_weight_max", "is_weight_limited", "overlong_fraction", "overlong_penalty"}
    assert set(everything) - plain == {"actor/kl"} | {f"rollout/{name}" for name in more}
    assert 0 < everything["rollout/overlong_fraction"] < 1
    assert 0 < everything["rollout/is_weight_limited"] < 1
    assert everything["rollout/is_weight_max"] > 2.0 > everything["rollout/is_weight_mean"]


@pytest.mark.parametrize("settings", [{"overlong_buffer_len": 4}, {"loss_agg_mode": "seq-mean-token-sum-norm"}])
def test_a_setting_that_needs_the_longest_answer_is_refused_without_it(tiny_model: Path, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"actor\.{next(iter(settings))}.*set rollout\.max_response_length"):
        make_learner(tiny_model, **settings)


def test_gradient_checkpointing_changes_no_bit(tiny_model: Path) -> None:
    plain, checkpointed = make_learner(tiny_model), make_learner(tiny_model, gradient_checkpointing=True)
    assert train(plain, 1).metrics == train(checkpointed, 1).metrics
    assert weights_digest(plain.weights()) == weights_digest(checkpointed.weights())


@pytest.mark.parametrize("tied", [True, False])
def test_weights_carry_the_names_of_a_saved_folder_and_fit_the_model(tmp_path: Path, tied: bool) -> None:
    from safetensors import safe_open

    folder = save_tiny_qwen2(tmp_path / "model", hidden_size=16, tied=tied)
    weights = make_learner(folder).weights()
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(weights)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in weights.items())
    assert all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in weights.values())


def test_a_loss_that_is_not_finite_stops_before_weights_or_optimizer_change(tiny_model: Path, tmp_path: Path) -> None:
    learner, twin = make_learner(tiny_model), make_learner(tiny_model)
    train(learner, 1)
    train(twin, 1)
    broken = [SampleGroup(0, (1, 2), (make_answer([3, 4], 0.0, [-1.0, math.nan]), make_answer([5], 1.0, [-1.0])))]
    with pytest.raises(LearnerError, match="step 2: loss nan"):
        learner.train(2, broken, [[0]])
    assert learner.step == 1
    assert train(learner, 2).metrics == train(twin, 2).metrics
    assert weights_digest(learner.weights()) == weights_digest(twin.weights())


@pytest.mark.parametrize(
    ("step", "batch", "micro_batches", "message"),
    [
        (2, make_batch(1), [[0, 1, 2, 3]], "step 2 cannot follow step 0"),
        (1, make_batch(1), [[0, 1, 2]], "do not name each of the 4 samples once"),
        (1, make_batch(1), [[0, 1, 2, 3], [3]], "do not name each of the 4 samples once"),
        (1, [], [], "none of the 0 samples has an answer token"),
        (1, [SampleGroup(7, (1,), (make_answer([], 0.0),))], [[0]], "none of the 1 samples has an answer token"),
        (1, [SampleGroup(7, (), (make_answer([3], 0.0),))], [[0]], "sample 7 has an empty prompt"),
        (1, [SampleGroup(7, (1,), (make_answer([3], math.nan),))], [[0]], r"sample 7 has rewards \[nan\]"),
        (1, [SampleGroup(7, (1,), (make_answer([16], 0.0),))], [[0]], "token 16 is not in the vocabulary of 16"),
    ],
)
def test_a_batch_that_cannot_be_trained_is_refused_with_its_values(
    tiny_model: Path, step: int, batch: list[SampleGroup], micro_batches: list[list[int]], message: str
) -> None:
    with pytest.raises(LearnerError, match=message):
        make_learner(tiny_model).train(step, batch, micro_batches)


def test_an_offloaded_learner_does_not_train_and_goes_on_unchanged_after_reload(tiny_model: Path) -> None:
    learner, twin = make_learner(tiny_model), make_learner(tiny_model)
    train(learner, 1)
    train(twin, 1)
    learner.offload()
    learner.offload()
    with pytest.raises(LearnerError, match="offloaded"):
        train(learner, 2)
    assert weights_digest(learner.weights()) == weights_digest(twin.weights())
    learner.reload()
    learner.reload()
    assert train(learner, 2).metrics == train(twin, 2).metrics


def test_a_learner_that_starts_while_its_devices_are_lent_resumes_off_them(tiny_model: Path, tmp_path: Path) -> None:
    twin = make_learner(tiny_model)
    train(twin, 1)
    twin.save(tmp_path / "step-1")
    learner = HfLearner(LearnerConfig(model=str(tiny_model), lr=1e-3, num_threads=1), total_steps=10, offloaded=True)
    learner.load(tmp_path / "step-1")
    with pytest.raises(LearnerError, match="offloaded"):
        train(learner, 2)
    learner.reload()
    assert train(learner, 2).metrics == train(twin, 2).metrics


def test_a_worker_thread_gets_the_same_bits(tiny_model: Path) -> None:
    learner, twin = make_learner(tiny_model), make_learner(tiny_model)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1
        assert pool.submit(train, learner, 1).result().metrics == train(twin, 1).metrics
    assert weights_digest(learner.weights()) == weights_digest(twin.weights())


def test_a_folder_that_lacks_weights_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(tiny_model / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    with pytest.raises(ConfigError, match=r"lacks weights \['model\.norm\.weight'\]"):
        make_learner(tmp_path)


def test_training_raises_the_reward_of_what_is_rewarded(tmp_path: Path) -> None:
    learner = make_learner(save_tiny_qwen2(tmp_path / "model", hidden_size=32), lr=5e-3)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    prompts = [(4, 9), (7, 3), (5, 5)]
    rewards = []
    for step in range(1, 26):
        model.load_state_dict(dict(learner.weights()), strict=False)
        batch = []
        for number, prompt in enumerate(prompts):
            distribution = torch.log_softmax(model(input_ids=torch.tensor([prompt])).logits[0, -1].detach(), 0)
            tokens = torch.multinomial(distribution.exp(), 16, replacement=True, generator=generator).tolist()
            answers = tuple(make_answer([token], float(token == prompt[0]), [float(distribution[token])]) for token in tokens)
            batch.append(SampleGroup(number, prompt, answers))
        rewards.append(learner.train(step, batch, [[0, 1, 2]]).metrics["rollout/mean_reward"])
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.5
