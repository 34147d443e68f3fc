"""A small random Qwen2 and batches for it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from services.samples import Answer, SampleGroup, VersionSpan

VOCABULARY = 16


@contextmanager
def process_settings_restored() -> Iterator[None]:
    """A learner sets these for its whole process; the tests share one."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def save_tiny_qwen2(folder: Path, *, seed: int = 0, hidden_size: int = 128, tied: bool = True) -> Path:
    """Two layers, 16 tokens, random weights, saved as a Hugging Face folder."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    """A word `w7` for each token."""
    model = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w1"))
    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="w0", eos_token="w2")


def make_answer(tokens: Sequence[int], reward: float, logprobs: Sequence[float] | None = None, version: int = 0) -> Answer:
    """One answer of one version; log-probabilities default to those of uniform sampling."""
    recorded = [-2.7725887] * len(tokens) if logprobs is None else logprobs
    return Answer(tuple(tokens), tuple(recorded), (VersionSpan(version, len(tokens)),) if tokens else (), "stop", reward)


def make_batch(seed: int, *, num_groups: int = 4, num_answers: int = 3, longest: int = 9) -> list[SampleGroup]:
    """Random prompts, answers, log-probabilities and rewards; lengths vary."""
    source = random.Random(seed)

    def tokens(at_least: int) -> list[int]:
        return [source.randrange(3, VOCABULARY) for _ in range(source.randint(at_least, longest))]

    def answer() -> Answer:
        drawn = tokens(1)
        return make_answer(drawn, round(source.random(), 3), [source.uniform(-4, -1) for _ in drawn])

    return [
        SampleGroup(seed * 1000 + number, tuple(tokens(2)), tuple(answer() for _ in range(num_answers))) for number in range(num_groups)
    ]
