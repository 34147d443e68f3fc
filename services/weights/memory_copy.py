"""A copy of a file of weights in memory, which changes can be written over: a replica's own of those it was given last.

It is a file without a name: whoever is to read it gets a path that lasts as long as the copy does, and the memory goes with the process,
however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch

from bus.errors import WeightsError
from services.weights.delta import Bits, apply
from services.weights.files import WeightsFile, read_tensors, read_weights

_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header; the header, JSON, says where each tensor lies behind it."""


class WeightCopy:
    """`origin`, copied. Raises WeightsError when it cannot be read, or there is no memory for it."""

    def __init__(self, origin: Path) -> None:
        self._file: BinaryIO = _unnamed()
        try:
            with origin.open("rb") as source:
                shutil.copyfileobj(source, self._file, 16 << 20)
            self._file.flush()
        except OSError as error:
            self.close()
            raise WeightsError(f"weights {origin} cannot be copied into memory: {error}") from error
        self.num_bytes = os.fstat(self._file.fileno()).st_size

    @property
    def path(self) -> Path:
        """Where other processes of this user find it."""
        return Path(self._file.name) if isinstance(self._file.name, str) else Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")

    def read(self, what: str, digest: str) -> WeightsFile:
        """The tensors, mapped. Raises WeightsError when they are not those of the digest; `what` is their name in what is said then."""
        return read_weights(self.path, what, digest)

    def change(self, entries: Mapping[str, torch.Tensor]) -> None:
        """Writes changes over it (`weight_delta`). Raises WeightsError, after which it may be neither the old nor the new weights."""
        target, dtypes = self._bits()
        apply(entries, target, dtypes)

    def close(self) -> None:
        """Gives the memory back, once nobody has it mapped."""
        self._file.close()

    def _bits(self) -> tuple[dict[str, Bits], dict[str, torch.dtype]]:
        """Every tensor's bytes in the file, to be written to."""
        dtypes = {name: tensor.dtype for name, tensor in read_tensors(self.path, str(self.path))[0].items()}
        content = np.memmap(self._file, dtype=np.uint8, mode="r+")
        length = int.from_bytes(content[:_LENGTH_BYTES].tobytes(), "little")
        header = json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
        found: dict[str, Bits] = {}
        for name, dtype in dtypes.items():
            begin, end = (_LENGTH_BYTES + length + offset for offset in header[name]["data_offsets"])
            size = dtype.itemsize if dtype.itemsize in (1, 2, 4, 8) else 1
            found[name] = content[begin:end].view(f"u{size}")
        return found, dtypes


def _unnamed() -> BinaryIO:
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("swingshift-weights"), "w+b")
    return cast(BinaryIO, tempfile.NamedTemporaryFile(prefix="swingshift-weights-"))
