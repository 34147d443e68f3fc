"""Whether a planned run can go on here: checked before its services start, for one that cannot start ends the run."""

from __future__ import annotations

import os
from pathlib import Path

from bus.errors import ConfigError
from bus.events import RunPlanned
from services.archiver.origin import CODE, INITIAL, WEIGHTS
from services.config import SCRIPTED, RunConfig
from services.data.planning import REWARD_DIGEST, reward_spec
from services.devices import cores_of, is_cuda
from services.launcher.protocol import Say
from services.learner.environment import differences
from services.local_settings import UNPINNED
from services.prompts import check_unchanged
from services.reward_functions import reward_digest


def copies_instead(config: RunConfig, folder: Path, say: Say) -> list[str]:
    """Settings that take what the recording has in place of what is not here any more."""
    settings: list[str] = []
    model, copied = config.model.path, folder / WEIGHTS / INITIAL
    if model != SCRIPTED and not Path(model).is_dir() and copied.is_dir():
        settings.append(f"model.path={copied}")
    file, _, function = config.data.reward.rpartition(":")
    recorded = folder / CODE / Path(file).name
    if file and not Path(file).is_file() and recorded.is_file():
        settings.append(f"data.reward={recorded}:{function}")
    for setting in settings:
        say(f"not here any more, its recorded copy is taken: {setting}")
    return settings


def check_here(plan: RunPlanned, config: RunConfig, say: Say) -> None:
    """Raises ConfigError for what the run needs and is not here, or is not as it was planned."""
    there = os.sched_getaffinity(0)
    missing = sorted({core for device in plan.devices.values() if not is_cuda(device) for core in cores_of(device) if core not in there})
    if missing and config.devices != "unpinned":
        raise ConfigError(
            f"the plan puts services on the cores {', '.join(map(str, missing))}, which are not here: add --set {UNPINNED}, "
            "then nobody is bound to cores; threads, and so the bits, stay as planned"
        )
    check_things(plan, config, say)


def check_things(plan: RunPlanned, config: RunConfig, say: Say) -> None:
    """The same of model, data and reward only: where services are elsewhere, their devices are not those of this machine."""
    if config.model.path != SCRIPTED and not (Path(config.model.path) / "config.json").is_file():
        raise ConfigError(f"the initial model is not in {config.model.path}: say where it is with --set model.path=FOLDER")
    if config.data.train_files:
        check_unchanged(config, plan)
    planned, file = plan.environment.get(REWARD_DIGEST), reward_spec(config).file
    if planned and file is not None and reward_digest(file) != planned:
        raise ConfigError(f"data.reward: {file} is not what the run was planned with; bring it back, or name it with --set data.reward=…")
    for name, (recorded, here) in differences(plan, config.actor).items():
        say(f"{name} is {here} here and was {recorded}: training may not be bit for bit what it would have been")
