"""A small model made on the spot, and its warm start: from nothing to a Hugging Face folder that reinforcement learning can improve.

ModelShape, seed ──make_model──▶ folder ──warm_start: imitate the task's demonstrations──▶ folder
                   prepare_model does both once and keeps the result under a digest of everything it depends on
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from bus.errors import ConfigError
from services.tasks.protocol import Prompt, Task

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, float], None]
"""Called with the steps done, the steps in all, and the loss of the last one."""

Lesson = tuple[Prompt, tuple[int, ...]]

_PART = 16
_IGNORED = -100
_BETAS = (0.9, 0.99)
_MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Qwen2 with tied embeddings."""

    hidden_size: int = 96
    intermediate_size: int = 256
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads or self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"a model with hidden size {self.hidden_size}, {self.num_heads} heads and {self.num_kv_heads} key-value heads: "
                "the heads must divide the hidden size, and the key-value heads the heads"
            )


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Supervised training for `steps` steps of `batch` demonstrations. Equal settings give equal weights on one machine and build."""

    steps: int = 300
    batch: int = 48
    lr: float = 4e-3
    """The highest; it rises over `lr_warmup_steps` and falls as a cosine to a twentieth."""
    lr_warmup_steps: int = 50
    seed: int = 0
    threads: int = 1
    """Part of the result, for the order of sums depends on it."""


def make_model(folder: Path, task: Task, shape: ModelShape, seed: int) -> None:
    """Writes config.json and random weights drawn with `seed` for the vocabulary and the lengths of `task`."""
    special = task.special
    config = Qwen2Config(
        vocab_size=task.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=task.max_prompt_length + task.max_response_length,
        tie_word_embeddings=True,
        pad_token_id=special.pad,
        bos_token_id=special.bos,
        eos_token_id=special.eos,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    _save(model, folder)


def warm_start(folder: Path, task: Task, settings: WarmStart, progress: Progress | None = None) -> float:
    """Trains the model of `folder` on demonstrations and writes it back. Returns the mean loss of the last tenth of the steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        losses = _imitate(model, task, settings, progress)
    finally:
        torch.set_num_threads(threads)
    _save(model, folder)
    tail = losses[-max(1, len(losses) // 10) :]
    return math.fsum(tail) / len(tail)


def prepare_model(cache: Path, task: Task, shape: ModelShape, settings: WarmStart, progress: Progress | None = None) -> Path:
    """The folder of the model after its warm start, made in `cache` unless it is there already."""
    folder = cache / f"{task.name}-{_digest(task, shape, settings)}"
    if (folder / "config.json").is_file():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{task.name}-", dir=cache))
    making.chmod(0o755)  # else nobody but this user could read the model
    try:
        make_model(making, task, shape, settings.seed)
        loss = warm_start(making, task, settings, progress)
        logger.info("warm start done task=%s steps=%d loss=%.3f folder=%s", task.name, settings.steps, loss, folder)
        _move_into_place(making, folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def _imitate(model: Qwen2ForCausalLM, task: Task, settings: WarmStart, progress: Progress | None) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=_BETAS, weight_decay=0.01)
    losses = []
    for step in range(settings.steps):
        lessons = [task.demonstration(step * settings.batch + place, settings.seed) for place in range(settings.batch)]
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        num_tokens = sum(len(answer) for _, answer in lessons)
        for part in _by_length(lessons):
            tokens, mask, labels = _padded(part, task.special.pad)
            logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1].flatten(0, 1)
            part_loss = functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=_IGNORED, reduction="sum") / num_tokens
            torch.autograd.backward(part_loss)
            loss += float(part_loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRAD_NORM)
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _rate(step, settings)
        optimizer.step()
        losses.append(loss)
        if progress is not None:
            progress(step + 1, settings.steps, losses[-1])
    return losses


def _rate(step: int, settings: WarmStart) -> float:
    rising = min(1.0, (step + 1) / max(1, settings.lr_warmup_steps))
    return rising * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / settings.steps)))


def _by_length(lessons: list[Lesson]) -> list[list[Lesson]]:
    """In parts of similar length, for lengths are uneven and a pass costs what its longest row does."""
    ordered = sorted(lessons, key=lambda lesson: len(lesson[0].tokens) + len(lesson[1]))
    return [ordered[start : start + _PART] for start in range(0, len(ordered), _PART)]


def _padded(lessons: list[Lesson], pad: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, attention mask and labels (answers only), each [lessons, longest]."""
    longest = max(len(prompt.tokens) + len(answer) for prompt, answer in lessons)
    tokens, mask, labels = [], [], []
    for prompt, answer in lessons:
        row = prompt.tokens + answer
        gap = longest - len(row)
        tokens.append(row + (pad,) * gap)
        mask.append((1,) * len(row) + (0,) * gap)
        labels.append((_IGNORED,) * len(prompt.tokens) + answer + (_IGNORED,) * gap)
    return torch.tensor(tokens), torch.tensor(mask), torch.tensor(labels)


def _save(model: Qwen2ForCausalLM, folder: Path) -> None:
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)


def _digest(task: Task, shape: ModelShape, settings: WarmStart) -> str:
    """Of all that the weights depend on; of the task also what it says, since its code may change under one name."""
    lessons = [task.demonstration(index, settings.seed) for index in range(16)]
    parts = {
        "task": [task.name, task.vocab_size, asdict(task.special), task.max_prompt_length, task.max_response_length],
        "lessons": [[prompt.tokens, answer] for prompt, answer in lessons],
        "shape": asdict(shape),
        "warm_start": asdict(settings),
        "versions": [torch.__version__, transformers.__version__],
        "code": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _move_into_place(making: Path, folder: Path) -> None:
    try:
        os.rename(making, folder)
    except OSError:
        # Somebody else was faster; what they made is the same.
        if not (folder / "config.json").is_file():
            raise
