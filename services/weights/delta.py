"""What changed in weights since the ones before, bit for bit, in a safetensors file.

    changes(base, new) ──file──▶ apply(file, base's own bytes) = new's bytes

A tensor NAME that did not change is not in it. Of one that did, the smallest of these is:

    NAME:values + NAME:gaps8 | NAME:gaps16 | NAME:mask     the elements that changed, and which they are (`gaps`; a mask has a bit each)
    NAME:all                                               every element

Elements are compared as bits: another NaN, or -0.0 for 0.0, is a change. Only who has the very weights of `base` gets those of `new`;
digests tell before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bus.errors import WeightsError
from services.weights.gaps import CHUNK, Positions, decode, encode, most_bytes

Bits = NDArray[np.unsignedinteger]
"""A tensor's elements as whole numbers of their size, flat."""
Part = Literal["values", "gaps8", "gaps16", "mask", "all"]
_GAPS: Mapping[Part, type[np.uint8] | type[np.uint16]] = {"gaps8": np.uint8, "gaps16": np.uint16}
_ENTRY_BYTES = 90
"""About what one more entry takes in the file's header, without its name."""


def bits(tensor: torch.Tensor) -> Bits:
    """The tensor's own memory, if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    size = tensor.element_size()
    return flat.view(f"u{size}") if size in (1, 2, 4, 8) else flat


def changes(base: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor], limit: int) -> dict[str, torch.Tensor] | None:
    """The entries of a file with what changed; None once they have over `limit` bytes. Raises WeightsError for another model's weights."""
    if different := sorted(name for name in set(base) | set(new) if not _alike(base.get(name), new.get(name))):
        raise WeightsError(f"{len(different)} tensors are others than before, such as {different[0]}: these are not weights of one model")
    entries: dict[str, torch.Tensor] = {}
    total = 0
    for name, tensor in new.items():
        for part, content in _changes_of(base[name], tensor).items():
            entries[f"{name}:{part}"] = content
            total += content.nbytes
        if total > limit:
            return None
    return entries


def apply(entries: Mapping[str, torch.Tensor], target: Mapping[str, Bits], dtypes: Mapping[str, torch.dtype]) -> None:
    """Writes the changes over the weights they were made against. Raises WeightsError for such as cannot be theirs, maybe half-way."""
    for name, parts in _by_name(entries).items():
        if name not in target:
            raise WeightsError(f"the changes are of {name}, which the weights do not have")
        values = parts.whole if parts.whole is not None else parts.values
        if values is None or values.dtype != dtypes[name]:
            raise WeightsError(f"the changes of {name} are {values.dtype if values is not None else 'none'}, the weights {dtypes[name]}")
        if parts.whole is not None:
            _write_all(name, bits(values), target[name])
        else:
            _write_some(name, bits(values), _positions(name, parts, target[name].size), target[name])


@dataclass(slots=True)
class _Parts:
    """The entries of one tensor."""

    whole: torch.Tensor | None = None
    values: torch.Tensor | None = None
    where: torch.Tensor | None = None
    kind: str = ""


def _alike(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape and one.dtype == other.dtype


def _changes_of(base: torch.Tensor, new: torch.Tensor) -> dict[Part, torch.Tensor]:
    before, after = bits(base), bits(new)
    changed = before != after
    count = int(np.count_nonzero(changed))
    if count == 0:
        return {}
    sizes: dict[Part, int] = {
        "gaps8": most_bytes(after.size, count, 1),
        "gaps16": most_bytes(after.size, count, 2),
        "mask": (after.size + 7) // 8,
    }
    kind = min(sizes, key=lambda part: sizes[part])
    if sizes[kind] + count * after.itemsize + _ENTRY_BYTES >= after.nbytes or new.numel() != after.size:
        return {"all": new}
    if kind == "mask":
        return {"values": _like(after[changed], new.dtype), kind: torch.from_numpy(np.packbits(changed))}
    # At most one in eight: a mask would take less else.
    positions = np.flatnonzero(changed)
    return {"values": _like(after.take(positions), new.dtype), kind: torch.from_numpy(encode(positions, _GAPS[kind]))}


def _like(values: Bits, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(values.view(np.uint8)).view(dtype)


def _by_name(entries: Mapping[str, torch.Tensor]) -> dict[str, _Parts]:
    found: dict[str, _Parts] = {}
    for key, tensor in entries.items():
        name, _, part = key.rpartition(":")
        parts = found.setdefault(name, _Parts())
        match part:
            case "values":
                parts.values = tensor
            case "all":
                parts.whole = tensor
            case "gaps8" | "gaps16" | "mask":
                parts.where, parts.kind = tensor, part
            case _:
                raise WeightsError(f"the changes have an entry {key!r}, which this version does not know: use one version everywhere")
    return found


def _write_all(name: str, values: Bits, place: Bits) -> None:
    if values.size != place.size:
        raise WeightsError(f"the changes of {name} have {values.size} elements, the weights {place.size}")
    place[:] = values


def _write_some(name: str, values: Bits, where: Iterator[Positions], place: Bits) -> None:
    used = 0
    for positions in where:
        if positions.size and int(positions[-1]) >= place.size:
            raise WeightsError(f"the changes of {name} reach element {int(positions[-1])}, the weights have {place.size}")
        if used + positions.size > values.size:
            raise WeightsError(f"the changes of {name} have {values.size} elements, and name more")
        place[positions] = values[used : used + positions.size]
        used += positions.size
    if used != values.size:
        raise WeightsError(f"the changes of {name} have {values.size} elements, and name {used}")


def _positions(name: str, parts: _Parts, places: int) -> Iterator[Positions]:
    if parts.where is None or parts.where.dtype != (torch.uint16 if parts.kind == "gaps16" else torch.uint8):
        raise WeightsError(f"the changes of {name} do not say which elements they are of")
    where = parts.where.reshape(-1).numpy()
    if parts.kind != "mask":
        yield from decode(where)
        return
    if where.size != (places + 7) // 8:
        raise WeightsError(f"the changes of {name} have a mask of {where.size} bytes for {places} elements")
    step = CHUNK // 8
    for start in range(0, where.size, step):
        yield np.flatnonzero(np.unpackbits(where[start : start + step])) + start * 8
