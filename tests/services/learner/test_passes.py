"""The two layouts of a pass see the same tokens and give the same log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, PreTrainedModel

from bus.errors import ConfigError
from services.learner.causal_lm import answer_logits, choose_layout, load_model
from services.learner.config import LearnerConfig
from services.learner.packed_attention import SHORT
from services.learner.passes import Layout, ScoredAnswer, build, cut, score
from services.samples import SampleGroup
from tests.services.learner.factories import make_answer, make_batch, save_tiny_qwen2

LAYOUTS: tuple[Layout, ...] = ("padded", "packed")


def load(folder: Path, **settings: object) -> PreTrainedModel:
    return load_model(LearnerConfig.model_validate({"model": str(folder), **settings}), "cpu")


def same(batch: Sequence[SampleGroup], value: float) -> list[list[float]]:
    return [[value] * len(group.answers) for group in batch]


def scored(seed: int = 1) -> list[ScoredAnswer]:
    batch = make_batch(seed)
    return score(batch, same(batch, 0.5), same(batch, 0.25), range(len(batch)))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_answer_token_is_predicted_from_what_stands_before_it(layout: Layout, attention: str, tiny_model: Path) -> None:
    model = load(tiny_model, attention=attention)
    answers = scored()
    with torch.no_grad():
        found = answer_logits(model, build(answers, layout))
        alone = [
            model(input_ids=torch.tensor([answer.prompt + answer.tokens])).logits[0, len(answer.prompt) - 1 : -1] for answer in answers
        ]
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-5)


def long_answers() -> list[ScoredAnswer]:
    """Two prompts with answers of many lengths, longer together than what is masked at once, one of them of a single token."""

    def tokens(first: int, length: int) -> tuple[int, ...]:
        return tuple((first + 7 * place) % 16 for place in range(length))

    lengths = {0: (60, 90, 1, 80, 33), 1: (30, 5, 60)}
    assert sum(lengths[0]) > SHORT > sum(lengths[1])
    return [
        ScoredAnswer(group, tokens(group, 30), tokens(size, size), (-1.0,) * size, 0.0, 0.0)
        for group, sizes in lengths.items()
        for size in sizes
    ]


def test_long_answers_are_packed_to_the_same_log_probabilities_and_gradients(tiny_model: Path) -> None:
    gradients, logits = [], []
    for layout in LAYOUTS:
        model = load(tiny_model)
        found = answer_logits(model, build(long_answers(), layout))
        torch.autograd.backward((found.log_softmax(-1) ** 2).mean())
        logits.append(found.detach())
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-4)


def test_a_packed_row_never_needs_a_square_of_its_length(tiny_model: Path) -> None:
    largest = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    copies = 20
    answers = [replace(answer, group=2 * copy + answer.group) for copy in range(copies) for answer in long_answers()]
    tensors = build(answers, "packed")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answer_logits(load(tiny_model), tensors)
    assert largest < tensors.input_ids.shape[1] ** 2 / 8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_targets_are_in_the_order_of_the_answers(layout: Layout) -> None:
    answers = scored()
    tensors = build(answers, layout)
    assert tensors.tokens.tolist() == [token for answer in answers for token in answer.tokens]
    assert tensors.rollout_logprobs.tolist() == pytest.approx([value for answer in answers for value in answer.logprobs])
    assert tensors.advantages.tolist() == [0.5] * len(tensors.tokens)
    assert tensors.shares.tolist() == [0.25] * len(tensors.tokens)
    assert tensors.lengths == tuple(len(answer.tokens) for answer in answers)


def test_a_packed_pass_holds_each_prompt_once_and_no_padding() -> None:
    batch = make_batch(2)
    tensors = build(score(batch, same(batch, 0.0), same(batch, 0.0), range(len(batch))), "packed")
    fed = sum(len(group.prompt_tokens) + sum(len(answer.tokens) - 1 for answer in group.answers) for group in batch)
    assert tensors.input_ids.shape == (1, fed)


def test_empty_answers_are_left_out() -> None:
    group = SampleGroup(0, (1, 2), (make_answer([], 0.0), make_answer([3], 1.0)))
    assert [answer.tokens for answer in score([group], [[-1.0, 1.0]], [[0.0, 1.0]], [0])] == [(3,)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_bounds_each_pass_with_its_prompts_and_keeps_the_order(layout: Layout) -> None:
    answers = scored(5)
    runs = cut(answers, layout, max_tokens=30)
    assert [answer for run in runs for answer in run] == answers
    assert len(runs) > 1
    for run in runs:
        prompts = {answer.group: len(answer.prompt) for answer in run}
        prompt_tokens = sum(prompts.values()) if layout == "packed" else sum(len(answer.prompt) for answer in run)
        assert prompt_tokens + sum(len(answer.tokens) for answer in run) <= 30


def test_an_answer_longer_than_the_bound_is_alone() -> None:
    long = ScoredAnswer(0, (1,) * 5, (2,) * 50, (0.0,) * 50, 0.0, 0.0)
    short = ScoredAnswer(0, (1,) * 5, (2,) * 3, (0.0,) * 3, 0.0, 0.0)
    assert [len(run) for run in cut([short, long, short, short], "packed", max_tokens=20)] == [1, 1, 2]


def test_a_model_whose_layers_take_a_mask_is_packed(tiny_model: Path) -> None:
    assert choose_layout(load(tiny_model)) == "packed"


def test_a_model_with_learned_positions_is_packed(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=64)).save_pretrained(tmp_path)
    assert choose_layout(load(tmp_path)) == "packed"


def test_a_model_with_sliding_windows_is_padded(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=8,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    assert choose_layout(load(tmp_path)) == "padded"


def kept_for_the_backward_pass(model: PreTrainedModel) -> int:
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answer_logits(model, build(scored(), "packed"))
    return len(kept)


def test_with_gradient_checkpointing_layers_keep_little_for_the_backward_pass(tiny_model: Path) -> None:
    plain, checkpointed = load(tiny_model), load(tiny_model, gradient_checkpointing=True)
    assert kept_for_the_backward_pass(checkpointed) < kept_for_the_backward_pass(plain) / 3


def test_a_model_with_dropout_is_not_checkpointed(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=64)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"gradient_checkpointing is true.*attn_pdrop"):
        load(tmp_path, gradient_checkpointing=True)


def test_logits_of_other_parameters_are_those_of_the_model_that_has_them(tiny_model: Path, tmp_path: Path) -> None:
    model, other = load(tiny_model), load(save_tiny_qwen2(tmp_path / "other", seed=5))
    tensors = build(scored(), "packed")
    with torch.no_grad():
        before = answer_logits(model, tensors)
        borrowed = answer_logits(model, tensors, dict(other.named_parameters()))
        assert torch.equal(borrowed, answer_logits(other, tensors))
        assert torch.equal(answer_logits(model, tensors), before)


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Hugging Face model folder"):
        load(tmp_path)


def test_a_folder_with_a_config_of_nothing_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load(tmp_path)
