"""The trainer's side of publishing what changed in weights, beside the weights themselves.

publish(v) ──▶ weights-…-v.safetensors                        kept mapped until v+1 is compared with it
publish(v+1) ──▶ weights-…-v+1.safetensors
            └──▶ weights-…-v+1.delta.safetensors ──▶ WeightsDelta(base v)
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bus.errors import WeightsError
from bus.events import WeightsDelta
from services.weights.files import BASE, WeightsFile, read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

DeltaMode = Literal["auto", "on", "off"]

WORTH_IT = 0.5
"""Share of the weights' bytes that changes must stay under with `auto`: applying them reads all the weights, too, from memory."""
AT_MOST = 1.0
"""The same with `on`; weights that are all others than before gain nothing."""
_SUFFIX = ".delta.safetensors"


@dataclass(frozen=True, slots=True)
class _Base:
    version: int
    revision: int
    weights: WeightsFile


class DeltaPublisher:
    """Of one incarnation of the trainer: its first publication, and a version that is published again, are not compared with others."""

    def __init__(self, mode: DeltaMode) -> None:
        self._mode = mode
        self._base: _Base | None = None

    def wanted(self, transport: str, revision: int) -> bool:
        """Whether a publication of this kind is compared with the one before."""
        compared = self._mode == "on" or (self._mode == "auto" and transport == "file")
        return compared and revision == 0 and self._base is not None and self._base.weights.path.is_file()

    def compare(self, path: Path) -> dict[str, torch.Tensor] | None:
        """What changed in the weights of a file since the last publication; None when that is too much to be of use."""
        from services.weights.delta import changes

        assert self._base is not None
        limit = (AT_MOST if self._mode == "on" else WORTH_IT) * self._base.weights.num_bytes
        try:
            return changes(self._base.weights, read_tensors(path, path.as_uri())[0], int(limit))
        except WeightsError as error:
            logger.warning("no delta is published: %s", error)
            return None

    def write(self, entries: Mapping[str, torch.Tensor], full: Path, *, durable: bool) -> WeightsDelta | None:
        """Writes changes beside the publication `full`; None where they cannot be, or are no smaller than it: nobody depends on them."""
        assert self._base is not None
        path = delta_of(full)
        needed = sum(entry.nbytes for entry in entries.values())
        try:
            size = full.stat().st_size
            if not durable and (free := shutil.disk_usage(full.parent).free) < needed + size:
                logger.warning("no delta is published: %d bytes are free in %s, the next weights need %d", free, full.parent, size)
                return None
            write_tensors(entries, path, durable=durable, metadata={BASE: self._base.weights.digest})
            num_bytes = path.stat().st_size
            if num_bytes > size:
                path.unlink()
                return None
        except (OSError, ValueError) as error:
            logger.warning("no delta is published: %s", error)
            return None
        return WeightsDelta(
            base_version=self._base.version, base_revision=self._base.revision, uri=path.as_uri(), num_bytes=num_bytes
        )  # fmt: skip

    def published(self, path: Path, version: int, revision: int, digest: str) -> None:
        """This is what the next publication is compared with. Its file is mapped: it costs no memory as long as it is kept anyway."""
        if self._mode == "off":
            return
        self.forget()
        try:
            tensors, num_bytes = read_tensors(path, path.as_uri())
        except WeightsError as error:
            logger.warning("the next publication will have no delta: %s", error)
            return
        self._base = _Base(version, revision, WeightsFile(tensors, path, digest, num_bytes))

    def forget(self) -> None:
        """The next publication is compared with none."""
        self._base = None


def delta_of(full: Path) -> Path:
    """Where changes lie that were published with the weights `full`."""
    return full.with_name(full.name.removesuffix(".safetensors") + _SUFFIX)


def is_delta(path: Path) -> bool:
    """Whether a file has changes, by its name."""
    return path.name.endswith(_SUFFIX)
