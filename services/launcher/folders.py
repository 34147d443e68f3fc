"""The folder of a run, and how a run is found again.

runs/RUN/   config.yaml  run.json  summary.json   server/ (embedded: redis.url while it runs)   logs/SERVICE.log
            the recording: events.sqlite  payloads.sqlite  weights/ (initial/ and its description)  checkpoints/
            code/ (the user's own reward, lock file, versions)   policies/ (what candidates say while they are tried)
runs/.models/   built-in models after their warm start
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bus.embedded import folder_url
from bus.errors import ConfigError
from bus.keys import check_run_id
from bus.server import named_server, shareable
from services.local_settings import INFO, SETTINGS
from services.places import shm_folder

SERVER = "server"
SUMMARY = "summary.json"
MODELS = ".models"
CONFIG = "config.yaml"
CODE = "code"


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run that a user named. `url` is None when no server is known to have it: then there is only its folder."""

    run: str
    url: str | None
    folder: Path


def new_run_id(root: Path, name: str, stamp: str) -> str:
    """A free id such as `demo-20261130-031522`, made of the configuration's name and a time stamp."""
    stem = "".join(letter if letter.isalnum() else "-" for letter in name)[:32].strip("-") or "run"
    candidates = [f"{stem}-{stamp}", *(f"{stem}-{stamp}-{number}" for number in range(2, 100))]
    return next(run for run in candidates if not (root / run).exists())


def refuse_known_folder(root: Path, run: str) -> Path:
    """The folder that a new run would get. Raises ConfigError when its id is in use, or is none."""
    folder = (root / check_run_id(run)).absolute()
    if os.path.lexists(folder):
        raise ConfigError(f"there is a run {run!r} in {root} already: choose another id with --run, or remove {folder}")
    return folder


def make_run_folder(root: Path, run: str) -> Path:
    """A new folder for a run. Raises ConfigError when its id is in use."""
    folder = refuse_known_folder(root, run)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{folder} was just made by somebody else: choose another id with --run") from None
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}; name another place with --set folder=DIR") from error
    return folder


def remove_shm_folder(run: str) -> None:
    """Frees the memory; nothing happens where there is none."""
    shutil.rmtree(shm_folder(run), ignore_errors=True)


def write_info(folder: Path, run: str, url: str | None, config: Mapping[str, object], settings: Sequence[str] = ()) -> None:
    """Leaves what is needed to find the run again. `url` of a named server, told without its password.

    `settings`: what is other here than was planned, see `services.local_settings`.
    """
    info: dict[str, object] = {"run": run, "redis": None if url is None else shareable(url), "pid": os.getpid()}
    info |= {SETTINGS: list(settings)} if settings else {}
    (folder / INFO).write_text(json.dumps(info, indent=1) + "\n")
    (folder / CONFIG).write_text(yaml.safe_dump(dict(config), sort_keys=False))


def record_reward(reward: str, folder: Path) -> None:
    """Keeps the source of a reward that is in a file (`path/file.py:function`) with the run, under `code/`."""
    file, _, _ = reward.rpartition(":")
    if file:
        (folder / CODE).mkdir(exist_ok=True)
        shutil.copyfile(file, folder / CODE / Path(file).name)


def find_run(named: str, root: Path, redis: str | None, environment: Mapping[str, str]) -> FoundRun:
    """The run of an id or a folder. Raises ConfigError when there is neither a folder nor a server to ask."""
    folder = Path(named) if (Path(named) / INFO).is_file() else root / named
    info = _info(folder)
    run = str(info.get("run") or named)
    url = named_server(redis, environment) or folder_url(folder / SERVER) or named_server(_text(info.get("redis")), environment)
    if not info and url is None:
        raise ConfigError(f"there is no run {named!r} in {root}: name its folder, or the server that has it with --redis URL")
    return FoundRun(check_run_id(run), url, folder.absolute())


def known_runs(root: Path) -> list[FoundRun]:
    """The runs that have a folder below `root`, in alphabetical order."""
    folders = sorted(path.parent for path in root.glob(f"*/{INFO}"))
    return [FoundRun(folder.name, folder_url(folder / SERVER), folder.absolute()) for folder in folders]


def named_by(folder: Path) -> str | None:
    """URL of the server that a run was last on, as it may be written down; None: an embedded one, or nobody knows."""
    return _text(_info(folder).get("redis"))


def _info(folder: Path) -> dict[str, object]:
    try:
        info = json.loads((folder / INFO).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / INFO} cannot be read: {error}") from error
    return info if isinstance(info, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
