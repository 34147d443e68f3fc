"""Digests of weights and files, the same for the same content wherever and however it lies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hex) over every tensor's name, dtype, shape and bytes, in the order of the names.

    It depends on nothing else: not on the order of the mapping, the device, strides, the file format or the transport.
    """
    total = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        header = json.dumps([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
        total.update(header.encode() + b"\n")
        # A digest of digests: tensors can be hashed or compared one by one.
        total.update(hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).digest())
    return total.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's content. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
