"""Published weights: one safetensors file a version, in shared memory or in a shared folder; the log carries only the notice.

    trainer ──publish──▶ /dev/shm/swingshift-<run>/…  or  <folder>/…  ──load_weights(uri, digest)──▶ replicas
                  │                   └──share──▶ <folder>/…, when a replica turns up that cannot see that memory
                  ├────▶ WeightNotice (in `WeightsPublished`)
                  └────▶ beside it, maybe: what changed since the one before

A file grows under a temporary name and is renamed, so a reader finds it whole or not at all. Loaded tensors are mapped from the file and
outlive its removal.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bus.disk import room
from bus.errors import WeightsError
from bus.events import WeightsDelta
from services.learner.tensor_file import in_turn
from services.machine import SHARED_MEMORY
from services.places import published_file, shm_folder
from services.weights.files import PARTIAL, WeightsFile, copy_file, number_of, read_weights, write_tensors
from services.weights.publisher import DeltaMode, DeltaPublisher, delta_of, is_delta

if TYPE_CHECKING:
    import torch

__all__ = ["WeightNotice", "WeightStore", "WeightsFile", "load_weights", "put_back"]

Transport = Literal["shm", "file"]

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_PATTERN = "weights-e*-v*-r*.safetensors"
NO_FOLDER = "transport 'file' needs a folder that trainer and replicas share: none is configured"


@dataclass(frozen=True, slots=True)
class WeightNotice:
    """What a reader needs to find and check one publication; `num_bytes` of the file, `seconds` that publishing took."""

    version: int
    revision: int
    transport: Transport
    uri: str
    digest: str
    num_bytes: int
    seconds: float
    delta: WeightsDelta | None = None


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """A publication that lies in the folder now; `seconds` that this took."""

    uri: str
    num_bytes: int
    seconds: float


class WeightStore:
    """Where one trainer publishes the weights of one run.

    `run_id` must be the run's alone on this machine. `shm` needs room for the new file and the next one in shared memory, `file` needs
    `folder`, reachable under the same path for all replicas; `auto` takes `shm` and, without room there or where replicas are on other
    machines, `file`. `delta`: whether changes are published, too (`WeightsConfig.delta`). Raises WeightsError.
    """

    def __init__(
        self,
        run_id: str,
        transport: Literal["auto", "shm", "file"] = "auto",
        folder: Path | None = None,
        shm_root: Path = SHARED_MEMORY,
        delta: DeltaMode = "off",
    ) -> None:
        if not _RUN_ID.fullmatch(run_id):
            raise WeightsError(f"run id {run_id!r} cannot be part of a file name: use letters, digits, '.', '_' and '-' only, at most 128")
        if transport == "file" and folder is None:
            raise WeightsError(NO_FOLDER)
        self._transport = transport
        self._shm_root = shm_root
        self._shm_folder = shm_folder(run_id, shm_root)
        self._folder = None if folder is None else folder.absolute()
        self._newest: str | None = None
        self._epoch: int | None = None
        """Of the incarnation that publishes, once it has."""
        self._deltas = DeltaPublisher(delta)

    def publish(
        self, weights: Mapping[str, torch.Tensor], version: int, revision: int, epoch: int, *, beyond: bool = False
    ) -> WeightNotice:
        """Writes the weights and returns their notice; the one published before stays. Raises WeightsError when they cannot be written.

        `beyond`: some replica is on another machine.
        """
        started = time.monotonic()
        needed = sum(tensor.nbytes for tensor in in_turn(weights).values())
        transport, folder = self._place(needed, beyond)
        path = folder / f"weights-e{epoch}-v{version}-r{revision}.safetensors"
        try:
            if transport == "shm":
                self._open_shm_folder()
            folder.mkdir(parents=True, exist_ok=True)
            digest = write_tensors(weights, path, durable=transport == "file")
        except (OSError, ValueError) as error:
            reason = f"{error}; {room(path)}"
            raise WeightsError(f"weights of version {version} ({needed} bytes) cannot be written to {path}: {reason}") from error
        entries = self._deltas.compare(path) if self._deltas.wanted(transport, revision) else None
        delta = None if entries is None else self._deltas.write(entries, path, durable=transport == "file")
        self._deltas.published(path, version, revision, digest)
        self._newest, self._epoch = path.as_uri(), epoch
        return WeightNotice(
            version=version,
            revision=revision,
            transport=transport,
            uri=self._newest,
            digest=digest,
            num_bytes=path.stat().st_size,
            seconds=time.monotonic() - started,
            delta=delta,
        )

    def retire(self, keep: Collection[str]) -> list[str]:
        """Removes every publication of the run whose uri is not in `keep`, also those of earlier incarnations, and returns their uris.

        The newest that this store published stays in any case, and what a later incarnation wrote, of which this one may not have heard.
        By name, which no two publications of a run share: the run may have moved.
        """
        kept = {published_file(uri).name for uri in keep} | ({published_file(self._newest).name} if self._newest is not None else set())
        kept |= {delta_of(Path(name)).name for name in kept}
        old = [path for path in self._files(_PATTERN) if path.name not in kept and self._is_past(path)]
        retired = [path for path in old if not is_delta(path)]
        # One that is kept may be on its way into the folder, by this process or its successor.
        partial = [path for path in self._files(_PATTERN + PARTIAL) if path.name.removesuffix(PARTIAL) not in kept]
        for path in [*old, *(path for path in partial if self._is_past(path))]:
            path.unlink(missing_ok=True)
        return [path.as_uri() for path in retired]

    def find(self, uri: str) -> Literal["folder", "memory", "gone"]:
        """Where a publication of this run is as seen from here: for everybody, for this machine alone, or nowhere."""
        path = published_file(uri, self._folder)
        if self._folder is not None and path.parent == self._folder and path.is_file():
            return "folder"
        if self._in_memory(uri).is_file():
            return "memory"
        # A run that was moved, or went back in its history, finds its first weights where they were written.
        return "folder" if path.is_file() and path.parent.name != self._shm_folder.name else "gone"

    def share(self, uri: str) -> SharedWeights | None:
        """Copies a publication from this machine's memory into the folder; None: it is gone. May run in a thread of its own.

        Raises WeightsError when it cannot be written.
        """
        began, origin = time.monotonic(), self._in_memory(uri)
        path = self._shared_folder() / origin.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            copy_file(origin, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unwritable(path, error) from error
        return SharedWeights(path.as_uri(), path.stat().st_size, time.monotonic() - began)

    def put_back(self, uri: str, weights: Mapping[str, torch.Tensor]) -> SharedWeights:
        """Writes a publication that is gone into the folder again. Raises WeightsError when it cannot be written."""
        began, path = time.monotonic(), self._shared_folder() / published_file(uri).name
        put_back(uri, weights, path.parent)
        return SharedWeights(path.as_uri(), path.stat().st_size, time.monotonic() - began)

    def purge(self) -> None:
        """Removes all that the run ever published here; folders go when nothing of others is in them."""
        for path in [*self._files(_PATTERN), *self._files(_PATTERN + PARTIAL)]:
            path.unlink(missing_ok=True)
        for folder in self._folders():
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        self._newest = None
        self._deltas.forget()

    def _place(self, needed: int, beyond: bool) -> tuple[Transport, Path]:
        if self._transport == "shm" or (self._transport == "auto" and not (beyond and self._folder is not None)):
            free = shutil.disk_usage(self._shm_root).free if self._shm_root.is_dir() else 0
            if free >= 2 * needed:
                return "shm", self._shm_folder
            if self._transport == "shm" or self._folder is None:
                raise WeightsError(
                    f"{self._shm_root} has {free} bytes free, weights of {needed} bytes need twice that, as the next lie beside them: "
                    "enlarge it, or configure a shared folder and transport 'file' or 'auto'"
                )
        return "file", self._shared_folder()

    def _shared_folder(self) -> Path:
        if self._folder is None:
            raise WeightsError(NO_FOLDER)
        return self._folder

    def _in_memory(self, uri: str) -> Path:
        """Where it is if it was published in this machine's memory."""
        return self._shm_folder / published_file(uri).name

    def _open_shm_folder(self) -> None:
        # Anybody may create a folder there: one of another user's would let them change what the replicas load.
        self._shm_folder.mkdir(mode=0o700, exist_ok=True)
        owner = self._shm_folder.lstat().st_uid
        if owner != os.getuid() or self._shm_folder.is_symlink():
            raise WeightsError(f"{self._shm_folder} is a link or belongs to user {owner}, not to {os.getuid()}: use another run id")

    def _is_past(self, path: Path) -> bool:
        """It is of this incarnation or an earlier one."""
        return self._epoch is None or (number_of(path) or (0, 0, 0))[0] <= self._epoch

    def _folders(self) -> list[Path]:
        return [self._shm_folder] if self._folder is None else [self._shm_folder, self._folder]

    def _files(self, pattern: str) -> list[Path]:
        return [path for folder in self._folders() for path in sorted(folder.glob(pattern))]


def load_weights(uri: str, digest: str, folder: Path | None = None) -> WeightsFile:
    """The tensors of a publication, on the CPU. Raises WeightsError when they are gone, torn, or not those of the digest.

    `folder`: where they may lie, too, under the same name: a run that was moved, or went on without its shared memory, has them there.
    """
    return read_weights(published_file(uri, folder), uri, digest)


def put_back(uri: str, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Writes a publication's weights into `folder`, where `load_weights` finds them. Raises WeightsError when they cannot be written."""
    path = folder.absolute() / published_file(uri).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(weights, path, durable=True)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"weights cannot be written to {path}: {error}; {room(path)}")
