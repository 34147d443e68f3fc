"""Published weights: one safetensors file a version, in shared memory or in a shared folder; the log carries only the notice.

    trainer ──publish──▶ /dev/shm/swingshift-<run>/…  or  <folder>/…  ──load_weights(uri, digest)──▶ replicas
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError

from bus.disk import room
from bus.errors import WeightsError
from bus.events import WeightsDelta
from services.learner.digests import weights_digest
from services.places import published_file
from services.weights.files import PARTIAL, SHM, WeightsFile, on_cpu, read_weights, write_tensors
from services.weights.publisher import DeltaMode, DeltaPublisher, delta_of, is_delta

__all__ = ["WeightNotice", "WeightStore", "WeightsFile", "load_weights", "put_back"]

Transport = Literal["shm", "file"]

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_PATTERN = "weights-e*-v*-r*.safetensors"


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


class WeightStore:
    """Where one trainer publishes the weights of one run.

    `run_id` must be the run's alone on this machine. `shm` needs room for the new file and the next one in shared memory, `file` needs
    `folder`, reachable under the same path for all replicas; `auto` takes `shm` and, without room there, `file`. `delta`: whether changes
    are published, too (`WeightsConfig.delta`). Raises WeightsError.
    """

    def __init__(
        self,
        run_id: str,
        transport: Literal["auto", "shm", "file"] = "auto",
        folder: Path | None = None,
        shm_root: Path = SHM,
        delta: DeltaMode = "off",
    ) -> None:
        if not _RUN_ID.fullmatch(run_id):
            raise WeightsError(f"run id {run_id!r} cannot be part of a file name: use letters, digits, '.', '_' and '-' only, at most 128")
        if transport == "file" and folder is None:
            raise WeightsError("transport 'file' needs a folder that trainer and replicas share: none is configured")
        self._transport = transport
        self._shm_root = shm_root
        self._shm_folder = shm_root / f"swingshift-{run_id}"
        self._folder = None if folder is None else folder.absolute()
        self._newest: str | None = None
        self._deltas = DeltaPublisher(delta)

    def publish(self, weights: Mapping[str, torch.Tensor], version: int, revision: int, epoch: int) -> WeightNotice:
        """Writes the weights and returns their notice; the one published before stays. Raises WeightsError when they cannot be written."""
        started = time.monotonic()
        needed = sum(tensor.nbytes for tensor in weights.values())
        transport, folder = self._place(needed)
        tensors = on_cpu(weights)
        path = folder / f"weights-e{epoch}-v{version}-r{revision}.safetensors"
        with ThreadPoolExecutor(1, "delta") as pool:
            comparing = pool.submit(self._deltas.compare, tensors) if self._deltas.wanted(transport, revision) else None
            try:
                if transport == "shm":
                    self._open_shm_folder()
                folder.mkdir(parents=True, exist_ok=True)
                write_tensors(tensors, path, durable=transport == "file")
            except (OSError, SafetensorError) as error:
                reason = f"{error}; {room(path)}"
                raise WeightsError(f"weights of version {version} ({needed} bytes) cannot be written to {path}: {reason}") from error
            digest = weights_digest(tensors)
            entries = None if comparing is None else comparing.result()
        delta = None if entries is None else self._deltas.write(entries, path, durable=transport == "file")
        self._deltas.published(path, version, revision, digest)
        self._newest = path.as_uri()
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

        The newest that this store published stays in any case. By name, which no two publications of a run share: the run may have moved.
        """
        kept = {published_file(uri).name for uri in keep} | ({published_file(self._newest).name} if self._newest is not None else set())
        retired = [path for path in self._files(_PATTERN) if not is_delta(path) and path.name not in kept]
        kept_deltas = {delta_of(Path(name)).name for name in kept}
        deltas = [path for path in self._files(_PATTERN) if is_delta(path) and path.name not in kept_deltas]
        for path in [*retired, *deltas, *self._files(_PATTERN + PARTIAL)]:
            path.unlink(missing_ok=True)
        return [path.as_uri() for path in retired]

    def purge(self) -> None:
        """Removes all that the run ever published here; folders go when nothing of others is in them."""
        for path in [*self._files(_PATTERN), *self._files(_PATTERN + PARTIAL)]:
            path.unlink(missing_ok=True)
        for folder in self._folders():
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        self._newest = None
        self._deltas.forget()

    def _place(self, needed: int) -> tuple[Transport, Path]:
        if self._transport != "file":
            free = shutil.disk_usage(self._shm_root).free if self._shm_root.is_dir() else 0
            if free >= 2 * needed:
                return "shm", self._shm_folder
            if self._transport == "shm" or self._folder is None:
                raise WeightsError(
                    f"{self._shm_root} has {free} bytes free, weights of {needed} bytes need twice that, as the next lie beside them: "
                    "enlarge it, or configure a shared folder and transport 'file' or 'auto'"
                )
        if self._folder is None:
            raise WeightsError("transport 'file' needs a folder that trainer and replicas share: none is configured")
        return "file", self._folder

    def _open_shm_folder(self) -> None:
        # Anybody may create a folder there: one of another user's would let them change what the replicas load.
        self._shm_folder.mkdir(mode=0o700, exist_ok=True)
        owner = self._shm_folder.lstat().st_uid
        if owner != os.getuid() or self._shm_folder.is_symlink():
            raise WeightsError(f"{self._shm_folder} is a link or belongs to user {owner}, not to {os.getuid()}: use another run id")

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
        write_tensors(on_cpu(weights), path, durable=True)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"weights cannot be written to {path}: {error}; {room(path)}") from error
