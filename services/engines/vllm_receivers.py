"""Each way in which weights get into one of vLLM's workers, under the name by which an update says which one it takes.

    file   maps a safetensors file                     nccl   vLLM's own engine for packed broadcasts
    gloo   broadcasts between CPUs                     ipc    vLLM's own engine for packed CUDA IPC

Runs in vLLM's workers. Several can be taken one after another: whatever fails, the file is left.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, cast

import torch
import torch.distributed
from safetensors import safe_open

from services.transfer.ipc_sender import rebuild_arguments
from services.transfer.senders import stay_on_this_machine

if TYPE_CHECKING:
    from vllm.distributed.weight_transfer.base import WeightTransferEngine

Info = Mapping[str, object]
Load = Callable[[Iterable[tuple[str, torch.Tensor]]], None]


class Receiver(Protocol):
    """One way, of one worker."""

    def join(self, info: Info) -> None:
        """Makes ready for it; touches no weights."""

    def receive(self, info: Info) -> None:
        """Gets what is described, and loads it."""

    def finish(self) -> None:
        """Lets go of what only one update needs."""

    def close(self) -> None:
        """Gives back what `join` took."""


class FileReceiver:
    """Nothing is copied on the way: the file is the publication itself, and vLLM's loaders slice it by name."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def join(self, info: Info) -> None:
        """Nothing to agree on."""

    def receive(self, info: Info) -> None:
        """`path`, and `names`: the model's -> that in the file."""
        self._load(_in_file(str(info["path"]), cast("Mapping[str, str]", info["names"])))

    def finish(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


class GlooReceiver:
    """The other end of `services.transfer.senders.GlooSender`."""

    def __init__(self, load: Load, worker: int) -> None:
        self._load = load
        self._worker = worker
        self._group: torch.distributed.ProcessGroupGloo | None = None

    def join(self, info: Info) -> None:
        limit = datetime.timedelta(seconds=cast(float, info["timeout_s"]))
        world_size = cast(int, info["world_size"])
        stay_on_this_machine(str(info["host"]))
        place = (str(info["host"]), cast(int, info["port"]))
        store = torch.distributed.TCPStore(*place, world_size, False, limit, wait_for_workers=False)  # type: ignore[attr-defined]
        self._group = torch.distributed.ProcessGroupGloo(store, self._worker + 1, world_size, limit)

    def receive(self, info: Info) -> None:
        if self._group is None:
            raise RuntimeError("weights by gloo were announced, and this worker has joined no group")
        self._load(_broadcast(self._group, info))

    def finish(self) -> None:
        """The group stays."""

    def close(self) -> None:
        self._group = None


class VllmReceiver:
    """By one of vLLM's own engines, which loads into whatever has `load_weights`."""

    def __init__(self, engine: WeightTransferEngine, load: Load) -> None:
        self._engine = engine
        self._engine.set_weight_update_target(_Target(load), engine.model_config)

    def join(self, info: Info) -> None:
        self._engine.init_transfer_engine(self._engine.parse_init_info(dict(info)))

    def receive(self, info: Info) -> None:
        self._engine.receive_weights(self._engine.parse_update_info(dict(info)))

    def finish(self) -> None:
        """The group stays."""

    def close(self) -> None:
        self._engine.shutdown()


class IpcReceiver(VllmReceiver):
    """By vLLM's engine for CUDA IPC; its handles come as plain values, for nothing here is pickled."""

    def __init__(self, engine: WeightTransferEngine, load: Load, uuid: str) -> None:
        super().__init__(engine, load)
        self._uuid = uuid

    def join(self, info: Info) -> None:
        uuids = cast("list[str]", info["uuids"])
        if self._uuid not in uuids:
            raise ValueError(f"this worker is on GPU {self._uuid}, the trainer offers memory of {', '.join(uuids)}")
        super().join({"packed": True})

    def receive(self, info: Info) -> None:
        handles = cast("Mapping[str, Info]", info["ipc_handles"])
        super().receive({**info, "ipc_handles": {uuid: rebuild_arguments(handle) for uuid, handle in handles.items()}})

    def finish(self) -> None:
        """Unmaps the trainer's buffer, which that could not free otherwise; this engine holds nothing else."""
        self._engine.shutdown()


class _Target:
    """What vLLM's engines take for the model: all that they do with it is this."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._load(weights)


def _in_file(path: str, names: Mapping[str, str]) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt", device="cpu") as file:
        for name, name_in_file in names.items():
            yield name, file.get_tensor(name_in_file)


def _broadcast(group: torch.distributed.ProcessGroupGloo, info: Info) -> Iterator[tuple[str, torch.Tensor]]:
    lists = (cast("list[str]", info["names"]), cast("list[str]", info["dtype_names"]), cast("list[list[int]]", info["shapes"]))
    for name, dtype, shape in zip(*lists, strict=True):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        group.broadcast(tensor, root=0).wait()  # type: ignore[attr-defined]  # torch's stubs leave it out
        yield name, tensor
