"""What a run began with, kept beside its recording: without it a recording could not be trained again, or only here and now.

    weights/initial/        the model's folder, whole, unless it is too large to be copied
    weights/initial.json    where it was, whether it was copied, and size and digest of each file
    code/                   the reward when it is a file of the user's, the lock file, versions.json (policies: policy_sources.py)

Written once: what is there already is left as it is, for the original may have changed since.
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from hashlib import blake2b
from pathlib import Path
from types import TracebackType

from bus.blobs import DIGEST_BYTES
from bus.disk import flush, free_bytes, room
from bus.errors import DiskError
from bus.events import RunPlanned
from services.code import ROOT
from services.config import BUILTIN, SCRIPTED
from services.engines.vllm_installed import PACKAGES as VLLM_PACKAGES
from services.engines.vllm_installed import installed_vllm
from services.entry import SERVICES, code_of
from services.packages import version_of
from services.planned import config_of

logger = logging.getLogger(__name__)

WEIGHTS, INITIAL, INITIAL_INFO = "weights", "initial", "initial.json"
CODE, VERSIONS = "code", "versions.json"
MOST_COPIED_BYTES = 2 << 30
"""A larger model is recorded by path and digest."""
SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja", ".py")
"""Files of a model's folder that are needed to load it: weights, configuration, tokenizer, chat template, code."""
PACKAGES = ("swingshift", "torch", "transformers", "tokenizers", "safetensors", "redis", "msgpack", "pydantic", "zstandard", *VLLM_PACKAGES)
CHUNK = 1 << 20
RETRY_S = 30.0

Progress = Callable[[int, int], None]
"""Bytes that were read so far, and all of them."""


def silent(done: int, total: int) -> None:
    """Shows nothing."""


def record_origin(plan: RunPlanned, folder: Path, progress: Progress = silent, other: Path | None = None) -> None:
    """Writes into a recording's folder what is not there yet. `other`: another recording of this run, which may have it.

    Raises DiskError when it cannot be written.
    """
    path = config_of(plan).model.path
    copy = None if other is None else other / WEIGHTS / INITIAL
    try:
        _record_code(plan, folder / CODE, None if other is None else other / CODE)
        if path not in (SCRIPTED, BUILTIN):
            _record_model(path, copy if copy is not None and copy.is_dir() else Path(path), folder / WEIGHTS, progress)
    except OSError as error:
        raise DiskError(f"what the run began with cannot be recorded in {folder}: {error}; {room(folder)}") from error


class OriginThread:
    """Does it beside the recording, for a large model takes a while; tries again until it is done or the block ends."""

    def __init__(self, plan: RunPlanned, folder: Path, patience_s: float) -> None:
        self._plan = plan
        self._folder = folder
        self._patience_s = patience_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="origin", daemon=True)

    def __enter__(self) -> OriginThread:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join(self._patience_s if kind is None else 0.0)
        if self._thread.is_alive():
            logger.warning("the initial model is not recorded whole: the run was over before that was done: folder=%s", self._folder)

    def _work(self) -> None:
        while True:
            try:
                record_origin(self._plan, self._folder)
                return
            except DiskError as error:
                logger.warning("%s", error)
            if self._ending.wait(RETRY_S):
                return


def _record_model(path: str, model: Path, weights: Path, progress: Progress) -> None:
    """`path`: where it was when the run began; `model`: where it is now."""
    info = weights / INITIAL_INFO
    if info.exists():
        return
    if not model.is_dir():
        logger.warning("the initial model is not recorded, for its folder is not on this machine: folder=%s", model)
        return
    files = sorted(path for path in model.iterdir() if path.is_file() and path.suffix in SUFFIXES)
    total = sum(path.stat().st_size for path in files)
    copied = total <= MOST_COPIED_BYTES and 2 * total <= free_bytes(weights)
    weights.mkdir(parents=True, exist_ok=True)
    partial = weights / f"{INITIAL}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    if copied:
        partial.mkdir()
    recorded = _read(files, partial if copied else None, lambda done: progress(done, total))
    if copied:
        flush(partial)
        shutil.rmtree(weights / INITIAL, ignore_errors=True)
        partial.rename(weights / INITIAL)
    _write(info, {"path": path, "copied": copied, "files": recorded})


def _read(files: Sequence[Path], to: Path | None, progress: Callable[[int], None]) -> dict[str, object]:
    """Size and digest (BLAKE2b with 128 bits, in hex) of each file; on the way they are copied."""
    recorded: dict[str, object] = {}
    done = 0
    for path in files:
        digest, size = blake2b(digest_size=DIGEST_BYTES), 0
        with path.open("rb") as source, nullcontext() if to is None else (to / path.name).open("wb") as target:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                if target is not None:
                    target.write(chunk)
                progress(done + size)
        if to is not None:
            flush(to / path.name)
        recorded[path.name] = {"num_bytes": size, "digest": digest.hexdigest()}
        done += size
    return recorded


def _record_code(plan: RunPlanned, code: Path, other: Path | None) -> None:
    code.mkdir(parents=True, exist_ok=True)
    theirs = sorted(other.iterdir()) if other is not None and other.is_dir() else []
    for source in (*theirs, _file_of(config_of(plan).data.reward), lock_file()):
        if source is not None and source.is_file() and not (code / source.name).exists():
            _copy(source, code / source.name)
    if not (code / VERSIONS).exists():
        _write(code / VERSIONS, versions(plan))


def lock_file() -> Path:
    """What `make` has installed into an environment like this one."""
    vllm = installed_vllm()
    return ROOT / ("requirements-vllm.lock" if vllm is not None and vllm.for_cpus else "requirements.lock")


def _file_of(named: str) -> Path | None:
    """The file of `path/file.py:name`; None for what is ours."""
    file, _, _ = named.rpartition(":")
    return Path(file) if file else None


def versions(plan: RunPlanned) -> dict[str, object]:
    """What the run's services are made of, as far as it is installed here."""
    installed = {name: found for name in PACKAGES if (found := version_of(name))}
    decides = {service: code_of(service, plan.policy, plan.policy_source) for service in SERVICES}
    return {
        "python": platform.python_version(), "platform": platform.platform(), "packages": installed, "code": decides,
        "policy": plan.policy, "reward": config_of(plan).data.reward,
    }  # fmt: skip


def _copy(source: Path, to: Path) -> None:
    partial = to.with_name(f"{to.name}.partial")
    shutil.copyfile(source, partial)
    flush(partial)
    partial.replace(to)


def _write(path: Path, content: dict[str, object]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    flush(partial)
    partial.replace(path)
    flush(path.parent)
