"""What each node has of what a run's services need: looked at there, all nodes at once, and judged here.

    Asked ─▶ every node: look() ─▶ Found: need ─▶ what is wrong      judge(needs_of(plan)) ─▶ service ─▶ why it cannot run there

A service is only put where all is that it needs (`Node.lacks`); a run begins when there is such a node for each.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from bus.connection import Connection
from bus.errors import ConfigError, SwingshiftError
from bus.events import RunPlanned
from services.config import BUILTIN, SCRIPTED, RunConfig
from services.data.planning import reward_spec
from services.devices import DECIDERS, REPLICA
from services.engines.vllm_installed import installed_vllm, problem_of, problem_on
from services.launcher.protocol import RunPlace
from services.local_settings import local_settings
from services.packages import version_of

FOLDER, LOGS, WEIGHTS, MODEL, DATA, REWARD, SERVER, PACKAGES, VLLM = (
    "folder", "logs", "weights", "model", "data", "reward", "server", "packages", "vllm",
)  # fmt: skip
"""What services need."""
EVERYBODY = (SERVER, PACKAGES, LOGS)
SERVER_S = 5.0
"""How long a node may take to reach the server."""
COMPARED = ("torch", "transformers")
"""Packages on whose version the bits of a training depend."""


class Asked(BaseModel):
    """What a node is asked to look at. Paths are absolute."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    """The run's."""
    marker: str
    """Name of a file in it; empty: there is none yet, and the folder is not looked for."""
    content: str
    weights: Path
    """Where published weights go."""
    model: Path | None
    files: tuple[Path, ...]
    """Of data."""
    reward: Path | None
    url: str
    """The server's; empty: it is not known yet."""
    server: str
    """What the server that answers here calls itself."""
    packages: tuple[str, ...]
    vllm: bool
    gpus: bool
    """Replicas are to generate on GPUs."""


class Found(BaseModel):
    """What one node says. `problems`: what is wrong with each need, and what to do; those that are fulfilled are not in it."""

    model_config = ConfigDict(frozen=True)

    host: str
    versions: dict[str, str]
    problems: dict[str, str]


def needs_of(plan: RunPlanned, config: RunConfig, *, folder_has_settings: bool) -> dict[str, tuple[str, ...]]:
    """Service -> its needs. `folder_has_settings`: what is other here than was planned lies in the run's folder, and all read it."""
    model = () if config.model.path == SCRIPTED else (MODEL,)
    settings = (FOLDER,) if folder_has_settings else ()
    of_files = (*model, DATA) if config.data.train_files else ()
    engine = (VLLM,) if config.rollout.engine == "vllm" else ()
    replicas = {REPLICA + name: (WEIGHTS, *model, *engine, *settings) for name in plan.standalone + plan.hybrid}
    # The archiver copies the model with the recording; who decides reads the log only, which the archiver completes for them.
    others = {"archiver": (FOLDER, *model), "policy": (FOLDER,), "controller": settings, "rollouter": (REWARD, *of_files, *settings)}
    assert others.keys() == set(DECIDERS)
    return {"trainer": (FOLDER, WEIGHTS, *model), **replicas, **others}


def judge(found: Found, needs: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Service -> why it cannot run there, the first reason; nothing of those that can."""
    wrong = {service: [found.problems[need] for need in (*EVERYBODY, *its) if need in found.problems] for service, its in needs.items()}
    return {service: words[0] for service, words in wrong.items() if words}


def differences(found: Mapping[str, Found], here: Mapping[str, str]) -> list[str]:
    """Sentences on versions that the plan was not made with: bits of a training depend on them. By node's name."""
    return [
        f"node {node} has {package} {version}, the run is planned with {here[package]}: training there may not be bit for bit the same"
        for node, answer in found.items()
        for package, version in answer.versions.items()
        if version and here.get(package, version) != version
    ]


def versions_here() -> dict[str, str]:
    """Package -> its version in this process's environment."""
    return {package: version for package in COMPARED if (version := version_of(package))}


@contextmanager
def asking(place: RunPlace, config: RunConfig) -> Iterator[Asked]:
    """What to ask nodes of a run whose folder and server are there. Raises ConfigError when nothing can be written into the folder."""
    marker, content = f".seen-{secrets.token_hex(8)}", secrets.token_hex(16)
    path = place.folder / marker
    try:
        path.write_text(content)
    except OSError as error:
        raise ConfigError(f"nothing can be written into {place.folder}: {error.strerror}; set folder to another place") from error
    try:
        yield asked(config, place.folder).model_copy(
            update={"marker": marker, "content": content, "url": place.url, "server": server_id(place.url)}
        )
    finally:
        path.unlink(missing_ok=True)


def asked(config: RunConfig, folder: Path) -> Asked:
    """The part that is known before the run's folder is made."""
    spec = reward_spec(config)
    scripted = config.model.path == SCRIPTED
    return Asked(
        folder=folder, marker="", content="", url="", server="",
        weights=(config.weights.folder or folder / "weights").absolute(),
        model=None if config.model.path in (BUILTIN, SCRIPTED) else Path(config.model.path).absolute(),
        files=tuple(Path(name).absolute() for name in (*config.data.train_files, *config.data.val_files)),
        reward=None if spec.file is None else Path(spec.file).absolute(),
        packages=() if scripted else COMPARED,
        vllm=config.rollout.engine == "vllm",
        gpus=config.actor.device == "cuda",
    )  # fmt: skip


def needs_settings(folder: Path) -> bool:
    """Something is other here than was planned, which services read in the run's folder. Raises ConfigError."""
    return bool(local_settings(folder))


def server_id(url: str) -> str:
    """What the server calls itself. Raises LogUnavailable, ServerError."""
    connection = Connection(url, answer_s=SERVER_S)
    try:
        reply = connection.call("INFO", "server")
    finally:
        connection.close()
    lines = reply.decode().splitlines() if isinstance(reply, bytes) else []
    return next((line.partition(":")[2] for line in lines if line.startswith("run_id:")), "")


# --- on a node -------------------------------------------------------------------------------------------------------------------


def look(text: str) -> str:
    """Looks at the node it runs on: Asked as JSON, Found as JSON."""
    return look_here(Asked.model_validate_json(text)).model_dump_json()


def look_here(asked: Asked) -> Found:
    """What this machine has."""
    wrong = {
        FOLDER: _folder(asked),
        LOGS: _writable(asked.folder),
        WEIGHTS: _weights(asked),
        MODEL: _model(asked.model),
        DATA: _files(asked.files, "data.train_files or data.val_files"),
        REWARD: _files(() if asked.reward is None else (asked.reward,), "data.reward"),
        SERVER: _server(asked),
        PACKAGES: _packages(asked.packages),
        VLLM: _vllm(asked),
    }
    return Found(
        host=platform.node(),
        versions={package: version_of(package) for package in asked.packages},
        problems={need: words for need, words in wrong.items() if words},
    )


def _folder(asked: Asked) -> str:
    if not asked.marker:
        return ""
    try:
        seen = (asked.folder / asked.marker).read_text() == asked.content
    except OSError:
        seen = False
    if not seen:
        return f"the run's folder {asked.folder} is not the same there: mount it under that path, or set folder to one that all nodes share"
    return _writable(asked.folder)


def _writable(folder: Path) -> str:
    """A folder that is there, or can be made."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK) and not os.statvfs(nearest).f_flag & os.ST_RDONLY:
        return ""
    what = f"{folder} cannot be written" if nearest == folder else f"{folder} cannot be made, for {nearest} cannot be written"
    return f"{what} there: give {_user()} the right to, or set folder to another place"


def _weights(asked: Asked) -> str:
    if asked.weights.is_relative_to(asked.folder):
        return _folder(asked)
    if not asked.weights.is_dir():
        return f"weights.folder {asked.weights} is not there: mount it under that path, or leave weights.folder out"
    return _writable(asked.weights)


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
        return ""
    try:
        found = server_id(asked.url)
    except SwingshiftError as error:
        return f"the run's server is not in reach: {error}; name one that every node reaches with --redis redis://HOST:PORT"
    if found != asked.server:
        return "another server answers there under the URL of the run's: name it with --redis by an address that is its own on every node"
    return ""


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
