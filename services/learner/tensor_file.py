"""Writes safetensors files one tensor at a time: no more of them need be in memory than the one that is written.

    8 bytes: length of the header ─ header: JSON, name -> dtype, shape, place ─ the tensors' bytes, one after the other

The format: https://github.com/huggingface/safetensors. The largest element size comes first, so that every tensor is aligned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

_DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64", torch.float32: "F32", torch.int32: "I32", torch.uint32: "U32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16", torch.uint16: "U16", torch.int8: "I8", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bool: "BOOL",
}  # fmt: skip
_METADATA = "__metadata__"
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Later:
    """A tensor that is fetched when it is its turn; `take` gives it as described, on any device."""

    shape: torch.Size
    dtype: torch.dtype
    take: Callable[[], torch.Tensor]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Later:
        """One that is there already."""
        return cls(tensor.shape, tensor.dtype, lambda: tensor)

    @property
    def nbytes(self) -> int:
        """Of its content."""
        return self.shape.numel() * self.dtype.itemsize


class LaterTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, each fetched whenever it is asked for: who looks at one after the other never has all of them."""

    def __init__(self, later: Mapping[str, Later]) -> None:
        self.later = later

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.later[name].take()

    def __contains__(self, name: object) -> bool:
        return name in self.later

    def __iter__(self) -> Iterator[str]:
        return iter(self.later)

    def __len__(self) -> int:
        return len(self.later)


def in_turn(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, Later]:
    """What is to be fetched of the tensors, and what they are; fetches none."""
    return tensors.later if isinstance(tensors, LaterTensors) else {name: Later.of(tensor) for name, tensor in tensors.items()}


def write_tensors(
    tensors: Mapping[str, Later],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    seen: Callable[[str, torch.Tensor], None] | None = None,
) -> None:
    """Writes the file; `seen` gets each tensor, too. Raises OSError; ValueError for a dtype that the format does not have."""
    unknown = {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype not in _DTYPES}
    if unknown:
        raise ValueError(f"tensors of these kinds cannot be written: {unknown}")
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, object] = {} if metadata is None else {_METADATA: dict(metadata)}
    end = 0
    for name in names:
        tensor, begin, end = tensors[name], end, end + tensors[name].nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            content = tensors[name].take().detach().cpu().contiguous()
            assert (content.shape, content.dtype) == (tensors[name].shape, tensors[name].dtype), name
            file.write(content.reshape(-1).view(torch.uint8).numpy().data)
            if seen is not None:
                seen(name, content)
            del content  # before the next one is there
