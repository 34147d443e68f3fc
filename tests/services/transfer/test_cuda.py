"""What only a CUDA device can show of direct transfers: another process maps the buffer and reads what was put in. Needs no vLLM.

`pytest tests/services/transfer/test_cuda.py`
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import cast

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from services.learner.digests import weights_digest
from services.transfer import ipc_sender
from services.transfer.ipc_sender import IpcSender, rebuild_arguments
from services.transfer.nccl_sender import HostSource

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MIB = 1 << 20


def large_weights() -> dict[str, torch.Tensor]:
    """More than one buffer of them, with one that is larger than a buffer."""
    generator = torch.Generator().manual_seed(1)
    weights = {f"layer.{number}": torch.randn(512, 1024, generator=generator).bfloat16() for number in range(40)}
    return weights | {"embedding": torch.randn(4096, 1024, generator=generator), "scale": torch.tensor(2.0)}


def take(connection: Connection) -> None:
    """The other process: what vLLM's engine does with a packed update, with nothing but torch."""
    taken: dict[str, torch.Tensor] = {}
    mapped: dict[bytes, torch.Tensor] = {}
    while (info := connection.recv()) is not None:
        (handle,) = info["ipc_handles"].values()
        key = cast(bytes, handle["handle"])
        if key not in mapped:
            mapped[key] = rebuild_cuda_tensor(*rebuild_arguments(handle))  # type: ignore[no-untyped-call]
        begin = 0
        for name, dtype, shape, size in zip(info["names"], info["dtype_names"], info["shapes"], info["tensor_sizes"], strict=True):
            taken[name] = mapped[key][begin : begin + size].clone().view(getattr(torch, dtype)).view(shape).cpu()
            begin += size
        torch.cuda.synchronize()
        connection.send("done")
    mapped.clear()
    connection.send(weights_digest(taken))


class OtherProcess:
    """`EngineCalls` that another process follows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.updates = 0

    def init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        assert init_info["uuids"] == [str(torch.cuda.get_device_properties(0).uuid)]

    def start_weight_update(self) -> None:
        pass

    def update_weights(self, update_info: dict[str, object]) -> None:
        self.updates += 1
        self._connection.send(update_info)
        assert self._connection.recv() == "done"

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._connection.send(None)


def test_another_process_reads_the_same_bits_out_of_a_shared_buffer_and_the_memory_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_sender, "BUFFER_BYTES", 8 * MIB)
    weights: Mapping[str, torch.Tensor] = large_weights()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=take, args=(there,))
    process.start()
    calls, sender = OtherProcess(here), IpcSender([0])
    sender.prepare()
    sender.send(weights, 1, calls)
    assert here.recv() == weights_digest(weights)
    process.join(30)
    assert process.exitcode == 0
    assert calls.updates > 2
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0


def test_a_source_gives_each_tensor_on_the_gpu_bit_for_bit() -> None:
    weights = large_weights()
    given = dict(HostSource(weights))
    assert all(tensor.is_cuda for tensor in given.values())
    assert weights_digest(given) == weights_digest(weights)
