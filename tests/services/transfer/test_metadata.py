"""What the ends tell each other about weights is what vLLM's own classes, and torch, take."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from bus.errors import TransferError
from services.transfer.ipc_sender import HANDLE, IpcSender, buffer_bytes, chunks, fill, rebuild_arguments
from services.transfer.nccl_sender import HostSource, NcclSender, init_info
from services.transfer.senders import described
from tests.services.engines.conftest import NEEDS_VLLM
from tests.services.engines.vllm_factories import quietly_imported
from tests.services.transfer.factories import some_weights


def test_a_buffer_is_filled_run_by_run_and_holds_every_byte_once() -> None:
    weights = some_weights(1)
    size = buffer_bytes(weights)
    assert size == sum(tensor.nbytes for tensor in weights.values())
    small = max(tensor.nbytes for tensor in weights.values())
    seen: dict[str, torch.Tensor] = {}
    for chunk in chunks(weights, small):
        buffer = torch.empty(small, dtype=torch.uint8)
        sizes = fill([buffer], list(chunk.values()))
        assert sum(sizes) <= small
        begin = 0
        for name, num_bytes in zip(chunk, sizes, strict=True):
            seen[name] = buffer[begin : begin + num_bytes].clone().view(weights[name].dtype).view(weights[name].shape)
            begin += num_bytes
    assert list(seen) == list(weights)
    assert all(torch.equal(seen[name], weights[name]) for name in weights)
    assert len(list(chunks(weights, small))) > 1


def test_a_handle_has_what_torch_rebuilds_a_tensor_from_in_its_order() -> None:
    parameters = list(inspect.signature(rebuild_cuda_tensor).parameters)
    named = [name.removeprefix("storage_") if name in ("storage_device", "storage_handle") else name for name in parameters]
    assert tuple(named[6:]) == HANDLE
    handle: dict[str, object] = {"numel": 40, "offset": 0, **{name: name for name in HANDLE}}
    arguments = rebuild_arguments(handle)
    assert len(arguments) == len(parameters)
    assert arguments[:6] == (torch.Tensor, torch.Size([40]), (1,), 0, torch.storage.TypedStorage, torch.uint8)


def test_without_a_gpu_neither_way_begins() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with quietly_imported():
        with pytest.raises(TransferError, match="the trainer cannot use NCCL"):
            NcclSender().prepare()
        with pytest.raises(TransferError, match="does not see the GPUs"):
            IpcSender([0]).prepare()


@NEEDS_VLLM
def test_vllms_classes_for_nccl_take_what_is_sent() -> None:
    with quietly_imported():
        from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine, NCCLWeightTransferUpdateInfo
    weights = some_weights(1)
    joined = NCCLWeightTransferInitInfo(**init_info(bytes(range(128)), 4))
    assert joined.nccl_unique_id_bytes == bytes(range(128))
    assert (joined.rank_offset, joined.world_size, joined.packed, joined.master_address) == (1, 5, True, None)
    update = NCCLWeightTransferUpdateInfo(**described(weights))
    assert [getattr(torch, name) for name in update.dtype_names] == [tensor.dtype for tensor in weights.values()]
    # vLLM's sending engine compares what a source declares with what it then yields.
    source = HostSource(weights, "cpu")
    engine = NCCLTrainerWeightTransferEngine(client=None, source=source)
    assert [meta.name for meta in engine.source.metadata()] == [name for name, _ in engine.source]
    assert [(meta.dtype, meta.shape) for meta in source.metadata()] == [(tensor.dtype, tuple(tensor.shape)) for _, tensor in source]


@NEEDS_VLLM
def test_vllms_classes_for_cuda_ipc_take_what_is_sent() -> None:
    with quietly_imported():
        from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferUpdateInfo
    weights = some_weights(1)
    handle: dict[str, object] = {"numel": 40, "offset": 0, **{name: name for name in HANDLE}}
    sizes = [tensor.nbytes for tensor in weights.values()]
    update = IPCWeightTransferUpdateInfo(**described(weights), tensor_sizes=sizes, ipc_handles={"GPU-1": rebuild_arguments(handle)})
    assert update.tensor_sizes == sizes


@NEEDS_VLLM
def test_vllm_has_all_that_direct_transfers_use() -> None:
    with quietly_imported():
        from services.engines.vllm_probe import NEEDED, missing

        assert any("nccl_engine" in place for place in NEEDED)
        assert missing({place: names for place, names in NEEDED.items() if "weight_transfer" in place}) == []
