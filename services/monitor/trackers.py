"""Where measures go besides the log: TensorBoard, W&B, trackio. All have one axis, the training step.

After a restart the monitor computes all steps anew; `tracked.json` in the run's folder says which of them a tracker has already.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

from bus.errors import ConfigError
from services.config import MonitorConfig
from services.monitor.event_file import EventFile

TENSORBOARD = "tensorboard"
FOLDER = "tensorboard"
"""In the run's folder: `tensorboard --logdir runs` shows all runs beside each other."""
STATE = "tracked.json"


class Tracker(Protocol):
    """One destination of measures."""

    def log(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Takes the scalars of one step; steps come in order."""

    def close(self) -> None:
        """Nothing more will come."""


class TensorBoardTracker:
    """Writes event files."""

    def __init__(self, folder: Path, first_step: int) -> None:
        self._folder = folder
        self._first_step = first_step
        self._file: EventFile | None = None

    def log(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        if self._file is None:
            self._file = EventFile(self._folder, wall_time, self._first_step)
        self._file.add(step, wall_time, values)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Logging(Protocol):
    """What W&B and trackio have in common."""

    def init(self, *, project: str, name: str, resume: str, **others: object) -> object: ...
    def log(self, values: Mapping[str, float], step: int) -> object: ...
    def finish(self) -> object: ...


class ModuleTracker:
    """W&B or trackio, as the user has set it up; one of their runs for one of ours, also over a restart."""

    def __init__(self, name: str, project: str, run: str, folder: Path) -> None:
        self._module = cast(_Logging, importlib.import_module(name))
        others: dict[str, object] = {"id": run, "dir": str(folder)} if name == "wandb" else {}
        self._module.init(project=project, name=run, resume="allow", **others)

    def log(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        self._module.log(values, step=step)

    def close(self) -> None:
        self._module.finish()


def check_trackers(config: MonitorConfig, installed: Callable[[str], bool] = lambda name: find_spec(name) is not None) -> None:
    """Raises ConfigError for a tracker whose package is not there."""
    for name in config.trackers:
        if name != TENSORBOARD and not installed(name):
            raise ConfigError(
                f"monitor.trackers names {name}, which is not installed here: `pip install {name}`, or leave it out "
                "(tensorboard needs no package to be written)"
            )


class Trackers:
    """All trackers of a run. Each step is given to each of them once, also by a monitor that starts anew."""

    def __init__(self, config: MonitorConfig, run: str, folder: Path) -> None:
        self._path = folder / STATE
        self._done = _read(self._path)
        self._trackers: dict[str, Tracker] = {}
        for name in config.trackers:
            if name == TENSORBOARD:
                self._trackers[name] = TensorBoardTracker(folder / FOLDER, self._done.get(name, 0) + 1)
            else:
                self._trackers[name] = ModuleTracker(name, config.project, run, folder)

    @property
    def names(self) -> Sequence[str]:
        """Those that are in use."""
        return tuple(self._trackers)

    def log(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Gives a step to every tracker that does not have it."""
        self._give("", step, step, wall_time, values)

    def log_evaluation(self, version: int, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Gives the evaluation of a version, done when `step` was the newest one, to every tracker that does not have it."""
        self._give(" evaluations", version + 1, step, wall_time, {**values, "eval/version": float(version)})

    def _give(self, what: str, number: int, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """`number`: rises with each one, from 1."""
        for name, tracker in self._trackers.items():
            if number > self._done.get(name + what, 0):
                tracker.log(step, wall_time, values)
                self._done[name + what] = number
                _write(self._path, self._done)

    def close(self) -> None:
        for tracker in self._trackers.values():
            tracker.close()


def _read(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; remove it, and what was tracked is written again") from error
    return {str(name): int(step) for name, step in found.items()}


def _write(path: Path, done: Mapping[str, int]) -> None:
    """Whole or not at all: a crash must not leave half a file."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(done))
    draft.replace(path)
