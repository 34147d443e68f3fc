"""How weights get out of the process that hands them out: one way a class, one object a connection.

    prepare ▸ (names and shapes are agreed on) ▸ send:  join once ▸ start ▸ receive while it sends ▸ finish

What the replica's engine has to do meanwhile is asked of it through `EngineCalls`, in the four calls of vLLM's own trainers.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
import torch.distributed

from bus.errors import TransferError
from services.transfer.messages import Take

GROUP_S = 60.0
"""How long the ends of a new group may take to find each other."""


class EngineCalls(Protocol):
    """The replica's engine, as the sending end sees it. The names are those of vLLM's protocol for trainers. Each raises TransferError."""

    def init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        """Joins a group, or agrees on how weights come."""

    def start_weight_update(self) -> None:
        """From here on it can only finish or fail."""

    def update_weights(self, update_info: dict[str, object]) -> None:
        """Returns when what is described has been received."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """All has been received."""


class Sender(Protocol):
    """Of one connection to one replica."""

    interruptible: bool
    """Whether `send` returns when the replica has gone. If not, only the end of the process ends it."""

    def prepare(self) -> None:
        """Finds out that it can send at all, before a replica waits for it. Raises TransferError."""

    def send(self, tensors: Mapping[str, torch.Tensor], workers: int, calls: EngineCalls) -> None:
        """Has the replica's engine take them, in the order of the mapping. Raises TransferError, or whatever went wrong."""

    def close(self) -> None:
        """Gives up the group."""


MakeSender = Callable[[Take], Sender]
"""Makes the one of a new connection."""


class GlooSender:
    """As NCCL does it, but between CPUs: with it the whole way can be tried without a GPU. No configuration chooses it."""

    interruptible = True

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._group: torch.distributed.ProcessGroupGloo | None = None

    def prepare(self) -> None:
        pass

    def send(self, tensors: Mapping[str, torch.Tensor], workers: int, calls: EngineCalls) -> None:
        beside = ThreadPoolExecutor(max_workers=1)
        try:
            group = self._group = self._group or self._join(workers, calls, beside)
            calls.start_weight_update()
            receiving = beside.submit(calls.update_weights, described(tensors))
            for tensor in tensors.values():
                if not receiving.done():
                    group.broadcast(tensor.contiguous(), root=0).wait()  # type: ignore[attr-defined]  # torch's stubs leave it out
            receiving.result()
        finally:
            # After an error the call ends with the connection, which is closed by whoever gets the error.
            beside.shutdown(wait=False)
        calls.finish_weight_update()

    def close(self) -> None:
        self._group = None

    def _join(self, workers: int, calls: EngineCalls, beside: ThreadPoolExecutor) -> torch.distributed.ProcessGroupGloo:
        stay_on_this_machine(self._host)
        limit = datetime.timedelta(seconds=GROUP_S)
        store = torch.distributed.TCPStore(self._host, 0, workers + 1, True, limit, wait_for_workers=False)  # type: ignore[attr-defined]
        place: dict[str, object] = {"host": self._host, "port": store.port, "world_size": workers + 1, "timeout_s": GROUP_S}
        joining = beside.submit(calls.init_weight_transfer_engine, place)
        try:
            group = torch.distributed.ProcessGroupGloo(store, 0, workers + 1, limit)
        except RuntimeError as error:
            joining.result()
            raise TransferError(f"no group with {workers} workers came about: {error}") from error
        joining.result()
        return group


def stay_on_this_machine(host: str) -> None:
    """Else gloo and NCCL listen on whatever network they find. What is set already counts."""
    if host.startswith("127."):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def described(tensors: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """Names, dtypes and shapes, as vLLM's engines want to have them."""
    shapes = [list(tensor.shape) for tensor in tensors.values()]
    return {"names": list(tensors), "dtype_names": dtype_names(tensors), "shapes": shapes}


def dtype_names(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Their dtypes without `torch.` in front."""
    return [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()]
