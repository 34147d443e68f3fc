"""Makes the initial model ready before a run: finds the folder, or makes the built-in one and warms it up.

The work is done in a process of its own, so that the supervisor never loads torch:

    prepare_model_folder ──configuration──▶ python -m services.launcher.prepare ──progress, folder──▶ prepare_model_folder
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bus.errors import ConfigError, SwingshiftError
from services.config import BUILTIN, SCRIPTED, RunConfig
from services.config_file import make_config
from services.launcher.child import ChildFailed, run_child, say
from services.learner.environment import THREADS

_STEP, _FOLDER = "step", "folder"


@dataclass(frozen=True, slots=True)
class WarmStartStep:
    """Progress of a warm start; before its first step, which takes some seconds to come, step 0 of nobody knows how many."""

    step: int
    steps: int | None
    loss: float | None


def with_model(config: RunConfig, models: Path, progress: Callable[[WarmStartStep], None]) -> RunConfig:
    """The configuration with the model's folder, absolute, in `model.path`. `models` keeps built-in ones. Raises ConfigError."""
    if config.model.path == SCRIPTED:
        return config
    folder = _make(config, models, progress) if config.model.path == BUILTIN else Path(config.model.path).absolute()
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model.path is {config.model.path}: there is no {folder / 'config.json'}; name a Hugging Face model folder")
    return make_config(config.resolved() | {"model": config.model.model_dump() | {"path": str(folder)}}, "the configuration")


def _make(config: RunConfig, models: Path, progress: Callable[[WarmStartStep], None]) -> Path:
    folder: Path | None = None

    def take(word: str, rest: str) -> None:
        nonlocal folder
        if word == _STEP:
            step, steps, loss = rest.split()
            progress(WarmStartStep(int(step), int(steps), float(loss)))
        elif word == _FOLDER:
            folder = Path(rest)

    progress(WarmStartStep(0, None, None))
    code, tail = 0, "it named no folder"
    try:
        threads = dict.fromkeys(THREADS, str(config.model.warm_start.threads))
        run_child("services.launcher.prepare", [str(models.absolute()), json.dumps(config.resolved())], take, threads)
    except ChildFailed as failed:
        code, tail, folder = failed.code, failed.tail, None
    if folder is None:
        raise ConfigError(f"the built-in model could not be made (exit code {code}):\n{tail}")
    return folder


def main(arguments: list[str]) -> None:
    """The process that makes the model: prints its progress, then the folder."""
    from services.tasks import get_task
    from services.tasks.model import ModelShape, WarmStart, prepare_model

    models, text = arguments
    config = make_config(json.loads(text), "the configuration")
    shape, settings = (
        ModelShape(**config.model.shape.model_dump(exclude_none=True)),
        WarmStart(**config.model.warm_start.model_dump(exclude_none=True)),
    )

    def stepped(step: int, steps: int, loss: float) -> None:
        say(_STEP, f"{step} {steps} {loss}")

    say(_FOLDER, str(prepare_model(Path(models), get_task(config.data.task), shape, settings, stepped)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SwingshiftError as error:
        sys.exit(str(error))
