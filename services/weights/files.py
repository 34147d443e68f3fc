"""Files of weights: written whole or not at all, and read only as those that they are said to be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bus.disk import flush
from bus.errors import WeightsError
from services.learner.digests import weights_digest

SHM = Path("/dev/shm")
PARTIAL = ".partial"


class WeightsFile(dict[str, torch.Tensor]):
    """The tensors of a publication, mapped from the file that holds them: who serves them elsewhere can hand on the file instead."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], path: Path, digest: str, num_bytes: int) -> None:
        super().__init__(tensors)
        self.path = path
        self.digest = digest
        self.num_bytes = num_bytes
        """Of the file."""


def on_cpu(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As they can be written to a file; those that can be as they are stay the same memory."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path, *, durable: bool, metadata: Mapping[str, str] | None = None) -> None:
    """Writes them under a temporary name first; `durable`: waits for the disk. Raises OSError, SafetensorError, and leaves nothing then."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        save_file(dict(tensors), partial, None if metadata is None else dict(metadata))
        if durable:
            flush(partial)
        partial.replace(path)
        if durable:
            flush(path.parent)
    except (OSError, SafetensorError):
        partial.unlink(missing_ok=True)
        raise


def read_weights(path: Path, what: str, digest: str) -> WeightsFile:
    """The tensors in a file, mapped; `what` is their name in messages. Raises WeightsError when it is gone, torn, or not of the digest."""
    tensors, num_bytes = read_tensors(path, what)
    if (found := weights_digest(tensors)) != digest:
        raise WeightsError(f"weights {what} have digest {found}, the notice says {digest}: they are not the ones published")
    return WeightsFile(tensors, path, digest, num_bytes)


def read_tensors(path: Path, what: str) -> tuple[dict[str, torch.Tensor], int]:
    """What is in a file, mapped, and the file's size. Raises WeightsError when it is gone or torn."""
    try:
        num_bytes = path.stat().st_size
        return load_file(path), num_bytes
    except FileNotFoundError as error:
        raise WeightsError(f"weights {what} are gone: take a newer publication, or share the folder between trainer and replica") from error
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"weights {what} are torn: {error}; take a newer publication") from error
