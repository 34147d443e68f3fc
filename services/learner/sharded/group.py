"""The processes of one sharded learner, and the two ways they speak.

    tell, hear          bytes from or to rank 0, over a group of its own: a rank without work waits there as long as it takes
    everywhere          numbers of all ranks, in the order of the ranks, within `timeout_s`; so do FSDP's collectives

A rank that dies closes its connections, and whoever waits for it raises at once; one that hangs is given up after `timeout_s`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bus.errors import LearnerError
from services.learner.sharded.torchrun import INTERFACE, choose_interface

_LOOPBACK = "lo"
_FOR_EVER = timedelta(days=3650)
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


class RankGroup:
    """This process as one of the ranks; one group a process at a time. Raises LearnerError when the others cannot be reached."""

    def __init__(self, rank: int, size: int, device: str, timeout_s: float, meeting: Path | None) -> None:
        """`meeting`: a file on this machine where the ranks find each other; None: torchrun's environment says how."""
        if dist.is_initialized():
            raise LearnerError("this process is a rank of a sharded learner already: close that one first")
        self.rank = rank
        self.size = size
        self._timeout = timedelta(seconds=timeout_s)
        if meeting is not None:
            os.environ[INTERFACE] = _LOOPBACK  # nobody else is to reach it
        else:
            choose_interface()
        try:
            dist.init_process_group(
                _BACKENDS[device], "env://" if meeting is None else meeting.as_uri(), timeout=self._timeout, world_size=size, rank=rank
            )
            self._control = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        except (RuntimeError, ValueError) as error:
            raise LearnerError(f"rank {rank} of {size} cannot join the others within {timeout_s:g} s: {error}") from error

    def tell(self, data: bytes, rank: int = 0) -> None:
        """Sends to rank 0, or from it to another. Raises LearnerError."""
        try:
            dist.send(torch.tensor([len(data)]), rank, self._control)
            dist.send(_tensor(data), rank, self._control)
        except RuntimeError as error:
            raise LearnerError(f"rank {rank} cannot be told anything any more: {error}") from error

    def hear(self, rank: int = 0, *, patiently: bool = False, within_s: float | None = None) -> bytes:
        """What `rank` tells, within `timeout_s` or `within_s`; `patiently`: however long that takes. Raises LearnerError."""
        limit = self._timeout if within_s is None else timedelta(seconds=within_s)
        timeout = _FOR_EVER if patiently else limit
        length = torch.zeros(1, dtype=torch.int64)
        try:
            self._receive(length, rank, timeout)
            data = torch.empty(int(length), dtype=torch.uint8)
            self._receive(data, rank, self._timeout)
        except RuntimeError as error:
            raise LearnerError(f"rank {rank} has ended, or said nothing for {timeout.total_seconds():g} s: {error}") from error
        return data.numpy().tobytes()

    def everywhere(self, values: Sequence[float]) -> list[list[float]]:
        """The `values` of every rank, equally many on each."""
        mine = torch.tensor(values, dtype=torch.float64)
        found = [torch.zeros_like(mine) for _ in range(self.size)]
        dist.all_gather(found, mine)
        return [tensor.tolist() for tensor in found]

    def send_part(self, tensor: torch.Tensor) -> None:
        """Sends a tensor's content to rank 0."""
        if tensor.numel():
            dist.send(tensor.contiguous(), 0)

    def receive_part(self, into: torch.Tensor, rank: int) -> None:
        """Fills `into`, which is contiguous, with what `rank` sends."""
        if into.numel():
            dist.recv(into, rank)

    def close(self) -> None:
        """Leaves the group. Twice is once."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _receive(self, into: torch.Tensor, rank: int, timeout: timedelta) -> None:
        work = dist.irecv(into, rank, self._control)
        assert work is not None
        work.wait(timeout)


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
