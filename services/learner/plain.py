"""A tensor as its bytes, for whoever writes, digests or reads weights and needs no torch for that, which takes seconds to load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Plain:
    """`kind`: torch's name for the dtype. `content`: the elements, row by row; a tensor made of it shares that memory."""

    kind: str
    shape: tuple[int, ...]
    content: memoryview

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Plain:
        """The tensor's own memory, if it is contiguous and on the CPU."""
        import torch

        tensor = tensor.detach().cpu().contiguous()
        return cls(kind_of(tensor.dtype), tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().data)

    @property
    def nbytes(self) -> int:
        """Of its content."""
        return self.content.nbytes

    def plain(self) -> Plain:
        """Itself; `Later` has to be fetched for it."""
        return self

    def take(self) -> torch.Tensor:
        """As a tensor."""
        import torch

        dtype = getattr(torch, self.kind)
        assert isinstance(dtype, torch.dtype), self.kind
        return torch.frombuffer(self.content, dtype=dtype).reshape(self.shape) if self.nbytes else torch.empty(self.shape, dtype=dtype)


def kind_of(dtype: torch.dtype) -> str:
    """Torch's name for it, as in `torch.NAME`."""
    return str(dtype).removeprefix("torch.")
