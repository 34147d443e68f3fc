"""Built-in verifiable tasks by name: prompts, rewards, a small model made on the spot and its warm start."""

from __future__ import annotations

import difflib

from bus.errors import ConfigError
from services.tasks.protocol import Task
from services.tasks.sorting import SortingTask

_TASKS: dict[str, Task] = {task.name: task for task in (SortingTask(),)}


def task_names() -> tuple[str, ...]:
    """The built-in tasks there are, in alphabetical order."""
    return tuple(sorted(_TASKS))


def get_task(name: str) -> Task:
    """The built-in task of this name. Raises ConfigError."""
    if name in _TASKS:
        return _TASKS[name]
    nearest = difflib.get_close_matches(name, _TASKS, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(f"there is no built-in task {name!r}, only {', '.join(sorted(_TASKS))}{hint}")
