"""Files of weights: written whole or not at all, and read only as those that they are said to be."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bus.disk import flush
from bus.errors import WeightsError
from services.learner import tensor_file
from services.learner.digests import WeightsDigest, weights_digest
from services.learner.tensor_file import LaterTensors, in_turn

if TYPE_CHECKING:
    import torch

PARTIAL = ".partial"
BASE = "base"
"""Key in the metadata of a file with changes: the digest of the weights that it is to be applied to."""
_NUMBERS = re.compile(r"weights-e(\d+)-v(\d+)-r(\d+)\.")


def number_of(path: Path) -> tuple[int, int, int] | None:
    """(epoch, version, revision) of a publication, by its name."""
    found = _NUMBERS.match(path.name)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


class WeightsFile(LaterTensors):
    """The tensors of a publication, mapped from the file that holds them: who serves them elsewhere can hand on the file instead."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], path: Path, digest: str, num_bytes: int) -> None:
        super().__init__(in_turn(tensors))
        self.path = path
        self.digest = digest
        self.num_bytes = num_bytes
        """Of the file."""


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path, *, durable: bool, metadata: Mapping[str, str] | None = None) -> str:
    """Writes them under a temporary name first, and returns their digest; never has more than one that is to be fetched.

    `durable`: waits for the disk. Raises OSError, ValueError, and leaves nothing then.
    """
    digest = WeightsDigest()
    partial = path.with_name(path.name + PARTIAL)
    try:
        tensor_file.write_tensors(in_turn(tensors), partial, metadata, digest.take)
        if durable:
            flush(partial)
        partial.replace(path)
        if durable:
            flush(path.parent)
        return digest.hexdigest()
    finally:
        partial.unlink(missing_ok=True)


def copy_file(origin: Path, path: Path) -> None:
    """Copies a file to disk under a temporary name first. Raises FileNotFoundError without an origin, OSError; leaves nothing then."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with origin.open("rb") as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target, 16 << 20)
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def read_weights(path: Path, what: str, digest: str) -> WeightsFile:
    """The tensors in a file, mapped; `what` is their name in messages. Raises WeightsError when it is gone, torn, or not of the digest."""
    tensors, num_bytes = read_tensors(path, what)
    if (found := weights_digest(tensors)) != digest:
        del tensors  # whoever keeps the error would keep the memory
        raise WeightsError(f"weights {what} have digest {found}, the notice says {digest}: they are not the ones published")
    return WeightsFile(tensors, path, digest, num_bytes)


def read_tensors(path: Path, what: str) -> tuple[LaterTensors, int]:
    """What is in a file, mapped, and the file's size. Raises WeightsError when it is gone or torn."""
    try:
        num_bytes = path.stat().st_size
        return tensor_file.read_tensors(path), num_bytes
    except FileNotFoundError as error:
        raise WeightsError(f"weights {what} are gone: take a newer publication, or share the folder between trainer and replica") from error
    except (OSError, ValueError) as error:
        raise WeightsError(f"weights {what} are torn: {error}; take a newer publication") from error
