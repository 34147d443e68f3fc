"""How a replica gets the weights that it was told of, whichever way they come.

WakeRequested, WeightUpdateRequested ──fetch──▶ Fetched ──load_into(engine)──▶ Loaded ──▶ ReplicaAwake, WeightsApplied
                                       the engine may go on serving     paused

The whole weights are there always; every other way is tried first, and what is wrong with it is said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from safetensors import safe_open

from bus.errors import WeightsError
from bus.events import WakeRequested, WeightsDelta, WeightUpdateRequested
from services.engines.protocol import Engine
from services.machine import SHARED_MEMORY
from services.places import published_file
from services.weights.files import BASE, WeightsFile, number_of, read_tensors
from services.weights.store import load_weights

if TYPE_CHECKING:
    import torch

    from services.weights.memory_copy import WeightCopy

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""How often it is looked whether weights have come."""

Notice = WakeRequested | WeightUpdateRequested


@dataclass(frozen=True, slots=True)
class Loaded:
    """How weights came into the engine, and how many bytes were read or received for them, in vain, too."""

    transport: str
    num_bytes: int


class Fetched:
    """Weights of one notice, as far as they can be had before the engine pauses."""

    def __init__(self, version: int, weights: WeightsFile, transport: str, num_bytes: int) -> None:
        self._version = version
        self.weights = weights
        self._loaded = Loaded(transport, num_bytes)

    def load_into(self, engine: Engine) -> Loaded:
        """Gives them to an engine that is paused. Raises EngineError, WeightsError."""
        engine.load_weights(self.weights, self._version)
        return self._loaded


@dataclass(frozen=True, slots=True)
class _Base:
    """The weights that were fetched last."""

    version: int
    revision: int
    digest: str
    copy: WeightCopy


class WeightFetcher:
    """Of one incarnation of one replica. `folder`: where the run's publications lie, if not where they were written.

    `delta`: the run's setting. Where deltas are published, a copy of the weights is kept in memory, which each delta is written over.
    `patience_s`: how long weights may take to become visible here: a folder that comes over a network lags.
    """

    def __init__(self, folder: Path, delta: Literal["auto", "on", "off"] = "off", patience_s: float = 0.0) -> None:
        self._folder = folder.absolute()
        self._patience_s = patience_s
        self._delta = delta
        self._base: _Base | None = None

    def fetch(self, notice: Notice) -> Fetched:
        """The weights of a notice. Raises WeightsError when they cannot be had in any way."""
        in_vain = 0
        if notice.delta is not None and self._delta != "off":
            base = self._base
            if base is None or (base.version, base.revision) != (notice.delta.base_version, notice.delta.base_revision):
                logger.info("the whole weights are taken: version=%d changes_since=%d", notice.version, notice.delta.base_version)
            else:
                try:
                    return self._changed(base, notice, notice.delta)
                except WeightsError as error:
                    in_vain = notice.delta.num_bytes
                    logger.warning("the whole weights are taken: version=%d reason=%s", notice.version, error)
        return self._whole(notice, in_vain)

    def close(self) -> None:
        """Gives back what it holds."""
        base, self._base = self._base, None
        if base is not None:
            base.copy.close()

    def _changed(self, base: _Base, notice: Notice, delta: WeightsDelta) -> Fetched:
        """Writes the changes over the weights that are here. Whatever is wrong with these after it, they are given up."""
        try:
            with _entries(published_file(delta.uri, self._folder), delta.uri, base.digest) as entries:
                base.copy.change(entries)
            del entries  # whoever keeps the error would keep the memory
            weights = base.copy.read(f"of {notice.uri}, made from changes", notice.digest)
        except WeightsError:
            self.close()
            raise
        self._base = _Base(notice.version, notice.revision, notice.digest, base.copy)
        return Fetched(notice.version, weights, "delta", delta.num_bytes)

    def _whole(self, notice: Notice, in_vain: int) -> Fetched:
        self.close()
        path = self._found(notice)
        transport = "shm" if path.is_relative_to(SHARED_MEMORY) else "file"
        weights = self._copied(notice, path) if self._delta == "on" or (self._delta == "auto" and transport == "file") else None
        weights = weights or load_weights(notice.uri, notice.digest, self._folder)
        return Fetched(notice.version, weights, transport, weights.num_bytes + in_vain)

    def _found(self, notice: Notice) -> Path:
        """Where the weights are, waiting for them if they may still come. Raises WeightsError when they have not."""
        path, give_up, says = published_file(notice.uri, self._folder), time.monotonic() + self._patience_s, True
        while not path.is_file():
            if self._is_over(notice, path):
                return path
            if time.monotonic() >= give_up:
                raise WeightsError(
                    f"weights {notice.uri} are gone, or not there for this machine ({self._patience_s:g} s waited): neither there nor in "
                    f"{self._folder}; let trainer and replicas share that folder, under the same path (weights.folder)"
                )
            if says:
                logger.info("weights are not to be seen here yet, waiting up to %g s: uri=%s", self._patience_s, notice.uri)
                says = False
            time.sleep(POLL_S)
            path = published_file(notice.uri, self._folder)
        return path

    def _is_over(self, notice: Notice, path: Path) -> bool:
        """Newer weights are here instead. Looking into the folders also lets a network's client ask for what is new in them."""
        there = [number for folder in (path.parent, self._folder) for file in folder.glob("weights-*") if (number := number_of(file))]
        return any(number[1:] > (notice.version, notice.revision) for number in there)

    def _copied(self, notice: Notice, path: Path) -> WeightsFile | None:
        """From a copy that changes can be written over; the publication itself may be gone by then. None if there can be no copy."""
        from services.weights.memory_copy import WeightCopy

        try:
            copy = WeightCopy(path)
        except WeightsError as error:
            logger.warning("the next weights will be taken whole, too: %s", error)
            return None
        try:
            weights = copy.read(notice.uri, notice.digest)
        except WeightsError:
            copy.close()
            raise
        self._base = _Base(notice.version, notice.revision, notice.digest, copy)
        return weights


@contextmanager
def _entries(path: Path, uri: str, base_digest: str) -> Iterator[Mapping[str, torch.Tensor]]:
    """What a file with changes has. Raises WeightsError when it is gone or torn, or is of other weights than those of the digest."""
    from services.weights.memory_copy import WeightCopy

    # Read, not mapped: the trainer may remove it meanwhile, and a file of another host that is gone must be an error, not a crash.
    copy = WeightCopy(path)
    try:
        entries, _ = read_tensors(copy.path, uri)
        with safe_open(copy.path, framework="pt") as file:
            of = (file.metadata() or {}).get(BASE)
        if of != base_digest:
            raise WeightsError(f"the changes in {uri} are to weights of digest {of}, here are those of {base_digest}")
        yield entries
    finally:
        copy.close()
