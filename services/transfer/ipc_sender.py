"""Weights by CUDA IPC to a replica on the same GPUs: its workers map a buffer of this process.

    retained copy ▸ pinned memory ▸ one buffer on each GPU, filled again and again ▸ the worker copies out of it what it needs

The engine says that it is done with one filling before the next one begins. On the other side is vLLM's own engine for packed IPC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.multiprocessing.reductions import reduce_tensor

from bus.errors import TransferError
from services.transfer.senders import EngineCalls, described

BUFFER_BYTES = 256 << 20
"""Of the buffer on each GPU, unless a single tensor is larger."""
HANDLE = (
    "device", "handle", "storage_size_bytes", "storage_offset_bytes", "requires_grad", "ref_counter_handle", "ref_counter_offset",
    "event_handle", "event_sync_required",
)  # fmt: skip
"""What of torch's description of a shared tensor differs from one flat buffer of bytes to another, in its order."""


class IpcSender:
    """To a replica on some of this process's GPUs, named by their numbers here."""

    interruptible = True

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = gpus
        self._agreed = False

    def prepare(self) -> None:
        if not torch.cuda.is_available() or max(self._gpus, default=0) >= torch.cuda.device_count():
            raise TransferError(f"the trainer's process does not see the GPUs {list(self._gpus)}: it sees {torch.cuda.device_count()}")

    def send(self, tensors: Mapping[str, torch.Tensor], workers: int, calls: EngineCalls) -> None:
        if not self._agreed:
            calls.init_weight_transfer_engine({"uuids": [_uuid(gpu) for gpu in self._gpus]})
            self._agreed = True
        size = buffer_bytes(tensors)
        buffers = {_uuid(gpu): torch.empty(size, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in self._gpus}
        handles = {uuid: handle_of(buffer) for uuid, buffer in buffers.items()}
        calls.start_weight_update()
        for chunk in chunks(tensors, size):
            sizes = fill(list(buffers.values()), list(chunk.values()))
            calls.update_weights({**described(chunk), "tensor_sizes": sizes, "ipc_handles": handles})
        calls.finish_weight_update()
        del buffers
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """The buffers are there only while it sends."""


def buffer_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Size of a buffer into which each of them fits, and not more than all of them need."""
    sizes = [tensor.nbytes for tensor in tensors.values()]
    return max(max(sizes, default=1), min(BUFFER_BYTES, sum(sizes)), 1)


def chunks(tensors: Mapping[str, torch.Tensor], size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Runs of them that fit into a buffer of so many bytes, in order."""
    chunk: dict[str, torch.Tensor] = {}
    filled = 0
    for name, tensor in tensors.items():
        if chunk and filled + tensor.nbytes > size:
            yield chunk
            chunk, filled = {}, 0
        chunk[name] = tensor
        filled += tensor.nbytes
    if chunk:
        yield chunk


def fill(buffers: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[int]:
    """Writes them one after another into each buffer; returns their sizes in bytes once they are there."""
    begin = 0
    for tensor in tensors:
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        flat = flat.pin_memory() if torch.cuda.is_available() else flat
        for buffer in buffers:
            buffer[begin : begin + flat.numel()].copy_(flat, non_blocking=True)
        begin += flat.numel()
    for buffer in buffers:
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()
    return [tensor.nbytes for tensor in tensors]


def handle_of(buffer: torch.Tensor) -> dict[str, object]:
    """What another process maps a flat buffer of bytes with, in plain values."""
    _, (_, size, _, offset, _, _, *rest) = reduce_tensor(buffer)  # type: ignore[no-untyped-call]
    return {"numel": size.numel(), "offset": offset, **dict(zip(HANDLE, rest, strict=True))}


def rebuild_arguments(handle: Mapping[str, object]) -> tuple[object, ...]:
    """The arguments of torch's `rebuild_cuda_tensor` for such a handle."""
    flat = (torch.Tensor, torch.Size([_number(handle["numel"])]), (1,), handle["offset"], torch.storage.TypedStorage, torch.uint8)
    return (*flat, *(handle[name] for name in HANDLE))


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _uuid(gpu: int) -> str:
    return str(torch.cuda.get_device_properties(gpu).uuid)
