"""Makes the initial model ready before a run: finds the folder, or makes the built-in one and warms it up.

The work is done in a process of its own, so that the supervisor never loads torch:

    prepare_model_folder ──configuration──▶ python -m services.launcher.prepare ──progress, folder──▶ prepare_model_folder
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bus.errors import ConfigError, SwingshiftError
from services.config import BUILTIN, SCRIPTED, RunConfig
from services.config_file import make_config
from services.launcher.local import dying_with_us
from services.learner.environment import THREADS

TAIL_LINES = 5
INTERRUPT_S = 5.0
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
    threads = dict.fromkeys(THREADS, str(config.model.warm_start.threads))
    command = dying_with_us(
        [sys.executable, "-P", "-m", "services.launcher.prepare", str(models.absolute()), json.dumps(config.resolved())]
    )
    folder = None
    progress(WarmStartStep(0, None, None))
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=os.environ | threads, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    word, _, rest = line.strip().partition(" ")
                    if word == _STEP:
                        step, steps, loss = rest.split()
                        progress(WarmStartStep(int(step), int(steps), float(loss)))
                    elif word == _FOLDER:
                        folder = Path(rest)
            except BaseException:
                _interrupt(process)
                raise
        if process.returncode == 0 and folder is not None:
            return folder
        errors.seek(0)
        tail = "\n".join(errors.read().strip().splitlines()[-TAIL_LINES:])
    raise ConfigError(f"the built-in model could not be made (exit code {process.returncode}):\n{tail}")


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Lets it remove what it began; not for long."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(INTERRUPT_S)
    except subprocess.TimeoutExpired:
        process.kill()


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

    def say(step: int, steps: int, loss: float) -> None:
        _print(f"{_STEP} {step} {steps} {loss}")

    _print(f"{_FOLDER} {prepare_model(Path(models), get_task(config.data.task), shape, settings, say)}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SwingshiftError as error:
        sys.exit(str(error))
