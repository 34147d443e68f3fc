"""What each node has of what a run's services need: asked of all nodes at once, looked at there, and judged here.

    asking ─▶ Asked ─▶ every node: look.py ─▶ Found: need ─▶ what is wrong      judge(needs_of(plan)) ─▶ service ─▶ why it cannot run there

A service is only put where all is that it needs (`Node.lacks`); a run begins when there is such a node for each.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from bus.connection import Connection
from bus.errors import ConfigError
from bus.events import RunPlanned
from bus.sources import REPLICA_PREFIX
from services.config import BUILTIN, SCRIPTED, RunConfig
from services.data.planning import reward_spec
from services.devices import DECIDERS
from services.local_settings import local_settings
from services.machine import host_of, machine_id
from services.packages import version_of
from services.places import CHECKPOINTS

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
    """The run's; before that is made, the one that it will be in."""
    weights: Path
    """Where published weights go."""
    marker: str = ""
    """Name of a file that the driver has written."""
    content: str = ""
    """What is in it."""
    shared: tuple[Path, ...] = ()
    """Where it lies: folders that must be the driver's for whoever needs the run's. None: nothing is asked about that."""
    shared_weights: tuple[Path, ...] = ()
    """The same for whoever needs published weights, where these are not in the run's folder."""
    model: Path | None
    files: tuple[Path, ...]
    """Of data."""
    reward: Path | None
    url: str = ""
    """The server's; empty: the embedded one, which does not run yet."""
    server: str = ""
    """What the server that answers here calls itself."""
    host: str = ""
    """Of an embedded server that does not run yet; empty: nothing is asked about it."""
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
    replicas = {REPLICA_PREFIX + name: (WEIGHTS, *model, *engine, *settings) for name in plan.standalone + plan.hybrid}
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
def asking(config: RunConfig, folder: Path, url: str | None) -> Iterator[Asked]:
    """What to ask nodes: a file lies in what they must share for as long as the block runs.

    `folder`: the run's, or the one that it will be in, which need not be there either; `url`: of its server, None: one will be embedded.
    Raises ConfigError when nothing can be written there, LogUnavailable or ServerError when the server does not answer.
    """
    whole = asked(config, folder)
    marker, content = f".seen-{secrets.token_hex(8)}", secrets.token_hex(16)
    beside = () if whole.weights.is_relative_to(folder) else (whole.weights,)
    # Parts of the folder may be elsewhere: links, or mounts of their own.
    shared = (nearest(folder), *(path for name in (CHECKPOINTS, WEIGHTS) if (path := folder / name).is_dir()))
    with ExitStack() as stack:
        for path in shared:
            stack.enter_context(_marked(path / marker, content, "set folder to another place"))
        for path in beside:
            stack.enter_context(_marked(path / marker, content, "make weights.folder there as on the nodes, or leave it out"))
        server = {"host": host_of(machine_id())} if url is None else {"url": url, "server": server_id(url)}
        yield whole.model_copy(update={"marker": marker, "content": content, "shared": shared, "shared_weights": beside} | server)


@contextmanager
def _marked(path: Path, content: str, instead: str) -> Iterator[None]:
    try:
        path.write_text(content)
    except OSError as error:
        raise ConfigError(f"nothing can be written into {path.parent} here: {error.strerror}; {instead}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def nearest(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def asked(config: RunConfig, folder: Path) -> Asked:
    """What nodes are asked without a look at anything here."""
    spec = reward_spec(config)
    scripted = config.model.path == SCRIPTED
    return Asked(
        folder=folder,
        weights=(config.weights.folder or folder / WEIGHTS).absolute(),
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
