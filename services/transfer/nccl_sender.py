"""Weights by NCCL to the GPUs of one replica, through vLLM's own sending engine.

    retained copy ▸ pinned memory ▸ this process's first GPU, a tensor at a time ▸ packed ▸ broadcast to all workers of the replica

The group is made from a unique id that goes over the authenticated connection. vLLM's other way, a TCP store, unpickles whatever anybody
puts into it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from bus.errors import TransferError
from services.transfer.senders import EngineCalls

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.distributed.weight_transfer.base import ParamMeta

BUFFER_BYTES = 256 << 20
"""What is packed together, but for a single tensor that is larger; both ends hold `BUFFERS` of them on the GPU."""
BUFFERS = 2


class NcclSender:
    """The sending rank (0) of one replica's group."""

    interruptible = False

    def __init__(self) -> None:
        self._group: PyNcclCommunicator | None = None

    def prepare(self) -> None:
        """Loads vLLM and NCCL."""
        try:
            from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

            NCCLLibrary()
        except (ImportError, OSError, AttributeError, ValueError) as error:
            raise TransferError(f"the trainer cannot use NCCL: {type(error).__name__}: {error}") from error
        if not torch.cuda.is_available():
            raise TransferError("the trainer's process sees no GPU")

    def send(self, tensors: Mapping[str, torch.Tensor], workers: int, calls: EngineCalls) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

        self._group = self._group or _join(workers, calls)
        engine = NCCLTrainerWeightTransferEngine(
            client=calls, source=HostSource(tensors), packed=True, packed_buffer_size_bytes=BUFFER_BYTES, packed_num_buffers=BUFFERS
        )
        engine.model_update_group = self._group
        engine.send_weights()

    def close(self) -> None:
        if self._group is not None:
            self._group.destroy()
            self._group = None


class HostSource:
    """What vLLM's sending engine asks a source for: what there is, and then each tensor on the GPU."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: str = "cuda") -> None:
        self._tensors = tensors
        self._device = device

    def metadata(self) -> list[ParamMeta]:
        """In the order in which they come."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors.items():
            yield name, to_device(tensor, self._device)


def to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy there, by way of pinned memory, which torch keeps for the next one."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else tensor.clone()


def init_info(unique_id: bytes, workers: int) -> dict[str, object]:
    """What each worker needs to join: vLLM's own `NCCLWeightTransferInitInfo`."""
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload

    info = NCCLWeightTransferInitInfo(
        rank_offset=1, world_size=workers + 1, nccl_unique_id_b64=base64.b64encode(unique_id).decode(),
        packed=True, packed_buffer_size_bytes=BUFFER_BYTES, packed_num_buffers=BUFFERS,
    )  # fmt: skip
    payload: dict[str, object] = worker_init_payload(info)
    return payload


def _join(workers: int, calls: EngineCalls) -> PyNcclCommunicator:
    from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
    from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

    unique_id = bytes(NCCLLibrary().ncclGetUniqueId().internal)
    # All ends must be inside at the same time. If the replica's is not, this one hangs: see `interruptible`.
    beside = ThreadPoolExecutor(max_workers=1)
    joining = beside.submit(calls.init_weight_transfer_engine, init_info(unique_id, workers))
    try:
        group = uid_init_process_group(unique_id, 0, workers + 1, torch.cuda.current_device())
        joining.result()
    finally:
        beside.shutdown(wait=False)
    return group
