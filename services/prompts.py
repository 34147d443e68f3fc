"""Prompts by number, in an order that the run's seed fixes."""

from __future__ import annotations

from typing import Protocol

from services.config import RunConfig
from services.tasks import get_task
from services.tasks.protocol import Prompt, Task


class PromptSource(Protocol):
    """The plan's prompts. The same number gives the same prompt in every process and after every restart."""

    def prompt(self, sample: int) -> Prompt:
        """Prompt number `sample`."""


class TaskPrompts:
    """The prompts of a built-in task; with `per_epoch`, the first so many of them again and again."""

    def __init__(self, task: Task, seed: int, per_epoch: int | None) -> None:
        self._task = task
        self._seed = seed
        self._per_epoch = per_epoch

    def prompt(self, sample: int) -> Prompt:
        return self._task.prompt(sample if self._per_epoch is None else sample % self._per_epoch, self._seed)


def make_prompts(config: RunConfig, seed: int) -> PromptSource:
    """The prompts that a configuration names. Raises ConfigError for an unknown task."""
    return TaskPrompts(get_task(config.data.task), seed, config.async_training.num_prompts)
