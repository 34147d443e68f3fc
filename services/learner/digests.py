"""Digests of weights and files, the same for the same content wherever and however it lies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from services.learner.plain import Plain
from services.learner.tensor_file import in_turn

if TYPE_CHECKING:
    import torch


class WeightsDigest:
    """The digest of weights whose tensors come one by one, in any order; see `weights_digest`."""

    def __init__(self) -> None:
        self._tensors: dict[str, bytes] = {}

    def take(self, name: str, tensor: Plain) -> None:
        """Takes in one tensor."""
        header = json.dumps([name, tensor.kind, list(tensor.shape)])
        content = hashlib.sha256(tensor.content).digest()
        self._tensors[name] = header.encode() + b"\n" + content

    def hexdigest(self) -> str:
        """Of those taken in so far."""
        return hashlib.sha256(b"".join(self._tensors[name] for name in sorted(self._tensors))).hexdigest()


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hex) over every tensor's name, dtype, shape and bytes, in the order of the names.

    It depends on nothing else: not on the order of the mapping, the device, strides, the file format or the transport. Of each tensor's
    bytes it is the digest that is digested, so tensors can be hashed or compared one by one.
    """
    digest = WeightsDigest()
    for name, tensor in in_turn(weights).items():
        digest.take(name, tensor.plain())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's content. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
