"""What one node of a cluster is asked, and looked at there: a task of Ray's, with this checkout and nothing else of the run.

Asked ─▶ look() ─▶ Found: need ─▶ what is wrong with it there, and what to do
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from bus.errors import SwingshiftError
from services.engines.vllm_installed import installed_vllm, problem_of, problem_on
from services.launcher.on_ray import survey
from services.launcher.on_ray.survey import Asked, Found, nearest, server_id
from services.machine import host_of, machine_id
from services.packages import version_of

SEEN_S = 2.0
"""How long a file that the driver has just written may take to be seen: shared folders are cached."""
POLL_S = 0.2


def look(text: str) -> str:
    """Looks at the node it runs on: Asked as JSON, Found as JSON."""
    return look_here(Asked.model_validate_json(text)).model_dump_json()


def look_here(asked: Asked) -> Found:
    """What this machine has."""
    wrong = {
        survey.FOLDER: _folder(asked),
        survey.LOGS: _writable(asked.folder),
        survey.WEIGHTS: _weights(asked),
        survey.MODEL: _model(asked.model),
        survey.DATA: _files(asked.files, "data.train_files or data.val_files"),
        survey.REWARD: _files(() if asked.reward is None else (asked.reward,), "data.reward"),
        survey.SERVER: _server(asked),
        survey.PACKAGES: _packages(asked.packages),
        survey.VLLM: _vllm(asked),
    }
    return Found(
        host=platform.node(),
        versions={package: version_of(package) for package in asked.packages},
        problems={need: words for need, words in wrong.items() if words},
    )


def _folder(asked: Asked) -> str:
    unlike = _unlike(asked, asked.shared)
    if unlike is not None:
        named = unlike if unlike.is_relative_to(asked.folder) else asked.folder
        return f"the run's folder {named} is not the same there: mount it under that path, or set folder to one that all nodes share"
    return _writable(asked.folder) if asked.shared else ""


def _weights(asked: Asked) -> str:
    if asked.weights.is_relative_to(asked.folder):
        return _folder(asked)
    unlike = _unlike(asked, asked.shared_weights)
    if unlike is not None or not asked.weights.is_dir():
        what = "is not the same there" if asked.weights.is_dir() else "is not there"
        return f"weights.folder {asked.weights} {what}: mount it under that path, or leave weights.folder out"
    return _writable(asked.weights)


def _unlike(asked: Asked, folders: Sequence[Path]) -> Path | None:
    """The first in which the driver's file does not lie."""
    return next((folder for folder in folders if not _seen(folder / asked.marker, asked.content)), None)


def _seen(path: Path, content: str) -> bool:
    give_up = time.monotonic() + SEEN_S
    while True:
        try:
            return path.read_text() == content
        except OSError:
            if time.monotonic() >= give_up:
                return False
        time.sleep(POLL_S)


def _writable(folder: Path) -> str:
    """A folder that is there, or can be made."""
    there = nearest(folder)
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK) and not os.statvfs(there).f_flag & os.ST_RDONLY:
        return ""
    what = f"{folder} cannot be written" if there == folder else f"{folder} cannot be made, for {there} cannot be written"
    return f"{what} there: give {_user()} the right to, or set folder to another place"


def _model(folder: Path | None) -> str:
    if folder is None or (folder / "config.json").is_file():
        return ""
    return f"model.path {folder} has no config.json there: copy the model under that path, or name a folder that all nodes share"


def _files(paths: Sequence[Path], setting: str) -> str:
    missing = [str(path) for path in paths if not path.exists()]
    return (
        f"{', '.join(missing)} ({setting}) is not there: copy it under that path, or name a folder that all nodes share" if missing else ""
    )


def _server(asked: Asked) -> str:
    if not asked.url:
        return _embedded(asked.host)
    try:
        found = server_id(asked.url)
    except SwingshiftError as error:
        return f"the run's server is not in reach: {error}; name one that every node reaches with --redis redis://HOST:PORT"
    if found != asked.server:
        return "another server answers there under the URL of the run's: name it with --redis by an address that is its own on every node"
    return ""


def _embedded(host: str) -> str:
    if not host or host == host_of(machine_id()):
        return ""
    return (
        "the run's server is not in reach: none is named, and an embedded one is for one machine; name one that every node reaches with "
        "--redis redis://HOST:PORT"
    )


def _packages(packages: Sequence[str]) -> str:
    missing = [package for package in packages if not version_of(package)]
    return (
        f"{', '.join(missing)} is not installed there: install requirements.lock on the node, or set cluster.runtime_env to {{pip: …}}"
        if missing
        else ""
    )


def _vllm(asked: Asked) -> str:
    if not asked.vllm:
        return ""
    found = installed_vllm()
    problem = problem_of(found) or (problem_on(found, "cuda:0" if asked.gpus else "") if found is not None else "")
    return f"rollout.engine is vllm, and {problem}" if problem else ""


def _user() -> str:
    return f"user {os.getuid()}"
