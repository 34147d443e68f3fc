"""The weights of a model as memory that can be taken, filled and given back while the model object stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from bus.errors import EngineError


@dataclass(frozen=True, slots=True)
class _Slot:
    """One tensor of the model; tied weights are one slot with several names."""

    names: tuple[str, ...]
    holder: torch.Tensor
    shape: torch.Size
    dtype: torch.dtype


class Weights:
    """Parameters and persistent buffers of a model. Other buffers (rotary frequencies) are computed from its config and stay."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self._device = device
        saved = model.state_dict(keep_vars=True)
        self._slots = [_Slot(tuple(names), saved[names[0]], saved[names[0]].shape, saved[names[0]].dtype) for names in tied_names(saved)]
        self._slot_of = {name: slot for slot in self._slots for name in slot.names}
        for name, buffer in model.named_buffers():
            if name not in saved:
                buffer.data = buffer.data.to(device)
        self.free()

    @property
    def num_bytes(self) -> int:
        """Memory they have now; 0 after `free`."""
        return sum(slot.holder.nbytes for slot in self._slots)

    def allocate(self) -> None:
        """Takes memory, without meaningful content."""
        for slot in self._slots:
            slot.holder.data = torch.empty(slot.shape, dtype=slot.dtype, device=self._device)

    def free(self) -> None:
        """Gives the memory back."""
        for slot in self._slots:
            slot.holder.data = torch.empty(0, dtype=slot.dtype, device=self._device)

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copies all of them in, converting to the model's dtype. Raises EngineError before the first copy if names or shapes differ."""
        self.check({name: tensor.shape for name, tensor in weights.items()})
        for slot in self._slots:
            given = [weights[name] for name in slot.names if name in weights]
            if not all(torch.equal(given[0], other) for other in given[1:]):
                raise EngineError(f"the model ties {' and '.join(slot.names)}, but they came with different values: send one of them")
            slot.holder.data.copy_(given[0])

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raises EngineError if these are not the weights of this model."""
        self._check_names(shapes)
        for name, shape in shapes.items():
            expected = self._slot_of[name].shape
            if tuple(shape) != expected:
                raise EngineError(f"weight {name} has shape {tuple(shape)}, the model's is {tuple(expected)}: is this its run?")

    def _check_names(self, weights: Mapping[str, object]) -> None:
        unknown = sorted(set(weights) - set(self._slot_of))
        missing = sorted(slot.names[0] for slot in self._slots if not any(name in weights for name in slot.names))
        if unknown or missing:
            raise EngineError(
                f"weights do not fit the model: {len(missing)} missing ({_some(missing)}), {len(unknown)} unknown ({_some(unknown)}); "
                "trainer and replica must be built from the same model folder"
            )


def tied_names(tensors: Mapping[str, torch.Tensor]) -> Iterable[list[str]]:
    """The names of each tensor: several where the same one has several."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return names.values()


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "") if names else "none"
