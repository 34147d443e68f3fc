"""How a replica gets the weights that it was told of, whichever way they come.

WakeRequested, WeightUpdateRequested ──fetch──▶ Fetched ──load_into(engine)──▶ Loaded ──▶ ReplicaAwake, WeightsApplied
                                       the engine may go on serving     paused

The whole weights are there always; every other way is tried first, and what is wrong with it is said.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open

from bus.errors import WeightsError
from bus.events import WakeRequested, WeightsDelta, WeightUpdateRequested
from services.engines.protocol import Engine
from services.places import published_file
from services.weights.delta import BASE
from services.weights.files import SHM, WeightsFile, read_tensors
from services.weights.memory_copy import WeightCopy
from services.weights.store import load_weights

logger = logging.getLogger(__name__)

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
    """

    def __init__(self, folder: Path, delta: Literal["auto", "on", "off"] = "off") -> None:
        self._folder = folder
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
            weights = base.copy.read(f"of {notice.uri}, made from changes", notice.digest)
        except WeightsError:
            self.close()
            raise
        self._base = _Base(notice.version, notice.revision, notice.digest, base.copy)
        return Fetched(notice.version, weights, "delta", delta.num_bytes)

    def _whole(self, notice: Notice, in_vain: int) -> Fetched:
        self.close()
        path = published_file(notice.uri, self._folder)
        transport = "shm" if path.is_relative_to(SHM) else "file"
        weights = self._copied(notice, path) if self._delta == "on" or (self._delta == "auto" and transport == "file") else None
        weights = weights or load_weights(notice.uri, notice.digest, self._folder)
        return Fetched(notice.version, weights, transport, weights.num_bytes + in_vain)

    def _copied(self, notice: Notice, path: Path) -> WeightsFile | None:
        """From a copy that changes can be written over; the publication itself may be gone by then. None if there can be no copy."""
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
