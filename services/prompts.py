"""Prompts by number: those of the plan in an order that the run's seed fixes, and those of the validation set."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Protocol

from bus.errors import ConfigError
from bus.events import RunPlanned
from services.config import RunConfig
from services.data.order import EpochOrder
from services.data.planning import data_digests, limits_of, read_sets
from services.data.prompt_set import PromptSet
from services.data.prompt_text import PromptText
from services.tasks import get_task
from services.tasks.protocol import Prompt, Task

logger = logging.getLogger(__name__)


class PromptSource(Protocol):
    """The same number gives the same prompt in every process and after every restart."""

    def prompt(self, sample: int) -> Prompt:
        """Prompt number `sample` of the plan."""

    def validation(self, index: int) -> Prompt:
        """Prompt number `index` of the validation set, which has `RunPlanned.num_validation`."""


class TaskPrompts:
    """The prompts of a built-in task; with an order, the same of them in every data epoch."""

    def __init__(self, task: Task, seed: int, order: EpochOrder | None) -> None:
        self._task = task
        self._seed = seed
        self._order = order

    def prompt(self, sample: int) -> Prompt:
        return self._task.prompt(sample if self._order is None else self._order.place(sample), self._seed)

    def validation(self, index: int) -> Prompt:
        return self._task.validation(index, self._seed)


class FilePrompts:
    """The prompts of files."""

    def __init__(self, train: PromptSet, validation: PromptSet | None, order: EpochOrder) -> None:
        self._train = train
        self._validation = validation
        self._order = order

    def prompt(self, sample: int) -> Prompt:
        return self._train.prompt(self._order.place(sample))

    def validation(self, index: int) -> Prompt:
        assert self._validation is not None, "the plan has no validation prompts"
        return self._validation.prompt(index)


def make_prompts(config: RunConfig, plan: RunPlanned) -> PromptSource:
    """The prompts of a planned run. Raises ConfigError when files are not what they were when it was planned."""
    data, size = config.data, config.async_training.num_prompts
    if not data.train_files:
        order = None if size is None else EpochOrder(size, plan.seed, shuffle=data.shuffle)
        return TaskPrompts(get_task(data.task), plan.seed, order)
    check_unchanged(config, plan)
    # What the plan has checked is read without being made into tokens, unless it must be known again which prompts are too long.
    limits = limits_of(config) if data.filter_overlong_prompts else None
    began = time.monotonic()
    train, validation = read_sets(config, PromptText(Path(config.model.path), data), limits)
    logger.info("prompts read: train=%d left_out=%d seconds=%.1f", len(train), train.left_out, time.monotonic() - began)
    return FilePrompts(train, validation, EpochOrder(size or len(train), plan.seed, shuffle=data.shuffle))


def check_unchanged(config: RunConfig, plan: RunPlanned) -> None:
    """Raises ConfigError when files of data or tokenizer are not what they were when the run was planned."""
    names = {"train_digest": "data.train_files", "validation_digest": "data.val_files", "tokenizer_digest": "the tokenizer in model.path"}
    for name, digest in data_digests(config).items():
        if plan.environment.get(name) != digest:
            raise ConfigError(
                f"{names[name]}: not what the run was planned with (digest {plan.environment.get(name)}, now {digest}): "
                "bring the files back as they were, or start a new run"
            )
