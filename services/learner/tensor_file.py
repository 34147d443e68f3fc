"""Writes safetensors files one tensor at a time, and reads them mapped: no more tensors need be in memory than the one that is looked at.

    8 bytes: length of the header ─ header: JSON, name -> dtype, shape, place ─ the tensors' bytes, one after the other

The format: https://github.com/huggingface/safetensors. The largest element size comes first, so that every tensor is aligned.
Torch is loaded only once a tensor is asked for.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, NonNegativeInt, TypeAdapter

from services.learner.plain import Plain, kind_of

if TYPE_CHECKING:
    import torch

_CODES = {
    "float64": "F64", "int64": "I64", "uint64": "U64", "float32": "F32", "int32": "I32", "uint32": "U32", "bfloat16": "BF16",
    "float16": "F16", "int16": "I16", "uint16": "U16", "int8": "I8", "uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "bool": "BOOL",
}  # fmt: skip
_SIZES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of an element."""
_KINDS = {code: kind for kind, code in _CODES.items()}
_METADATA = "__metadata__"
_ALIGNMENT = 8
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Later:
    """A tensor that is fetched when it is its turn; `take` gives it as described, on any device."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    take: Callable[[], torch.Tensor]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Later:
        """One that is there already."""
        return cls(tensor.shape, tensor.dtype, lambda: tensor)

    @property
    def kind(self) -> str:
        """See `Plain.kind`."""
        return kind_of(self.dtype)

    @property
    def nbytes(self) -> int:
        """Of its content."""
        return math.prod(self.shape) * self.dtype.itemsize

    def plain(self) -> Plain:
        """Its bytes."""
        return Plain.of(self.take())


class LaterTensors(Mapping[str, "torch.Tensor"]):
    """Tensors by name, each fetched whenever it is asked for: who looks at one after the other never has all of them."""

    def __init__(self, later: Mapping[str, Later | Plain]) -> None:
        self.later = later

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.later[name].take()

    def __contains__(self, name: object) -> bool:
        return name in self.later

    def __iter__(self) -> Iterator[str]:
        return iter(self.later)

    def __len__(self) -> int:
        return len(self.later)


def in_turn(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, Later | Plain]:
    """What is to be fetched of the tensors, and what they are; fetches none."""
    return tensors.later if isinstance(tensors, LaterTensors) else {name: Later.of(tensor) for name, tensor in tensors.items()}


def write_tensors(
    tensors: Mapping[str, Later | Plain],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    seen: Callable[[str, Plain], None] | None = None,
) -> None:
    """Writes the file; `seen` gets each tensor, too. Raises OSError; ValueError for a dtype that the format does not have."""
    unknown = {name: tensor.kind for name, tensor in tensors.items() if tensor.kind not in _CODES}
    if unknown:
        raise ValueError(f"tensors of these kinds cannot be written: {unknown}")
    names = sorted(tensors, key=lambda name: (-_SIZES[_CODES[tensors[name].kind]], name))
    header: dict[str, object] = {} if metadata is None else {_METADATA: dict(metadata)}
    end = 0
    for name in names:
        tensor, begin, end = tensors[name], end, end + tensors[name].nbytes
        header[name] = {"dtype": _CODES[tensor.kind], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name in names:
            plain = tensors[name].plain()
            assert (plain.shape, plain.kind) == (tuple(tensors[name].shape), tensors[name].kind), name
            file.write(plain.content)
            if seen is not None:
                seen(name, plain)
            del plain  # before the next one is there


class _Place(BaseModel, frozen=True, extra="forbid"):
    dtype: str
    shape: tuple[NonNegativeInt, ...]
    data_offsets: tuple[NonNegativeInt, NonNegativeInt]


_PLACES = TypeAdapter(dict[str, _Place])


def read_tensors(path: Path) -> LaterTensors:
    """The tensors of a file, mapped: they outlive its removal, and what is written into them stays this process's.

    Raises OSError; ValueError for a file that is not whole.
    """
    with path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    if begin > content.nbytes:
        raise ValueError(f"it ends after {content.nbytes} bytes, within its header of {begin}")
    header = json.loads(bytes(content[_LENGTH_BYTES:begin]))
    if isinstance(header, dict):
        header.pop(_METADATA, None)
    places = _PLACES.validate_python(header)
    _check(places, content.nbytes - begin)
    return LaterTensors({name: _plain(place, content[begin:]) for name, place in places.items()})


def _check(places: Mapping[str, _Place], num_bytes: int) -> None:
    """Raises ValueError unless the tensors fill the file, one after the other."""
    reached = 0
    for name, place in sorted(places.items(), key=lambda item: item[1].data_offsets):
        if place.dtype not in _KINDS:
            raise ValueError(f"{name} has numbers of kind {place.dtype}, which this version does not know")
        begin, end = place.data_offsets
        if begin != reached or end - begin != math.prod(place.shape) * _SIZES[place.dtype]:
            raise ValueError(f"{name}, of shape {list(place.shape)} and kind {place.dtype}, lies from byte {begin} to {end}")
        reached = end
    if reached != num_bytes:
        raise ValueError(f"its tensors have {reached} bytes, it has {num_bytes}")


def _plain(place: _Place, content: memoryview) -> Plain:
    begin, end = place.data_offsets
    return Plain(_KINDS[place.dtype], place.shape, content[begin:end])
