"""Which rows of a tensor a rank holds: FSDP2's rule, equal numbers of rows, the last ranks may have fewer or none."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from services.learner.sharded.group import RankGroup


def rows_of(num_rows: int, rank: int, ranks: int) -> slice:
    """The rows of `rank`."""
    most = -(-num_rows // ranks)
    return slice(min(rank * most, num_rows), min((rank + 1) * most, num_rows))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, sharing its memory; a tensor that is not shared out is its own."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
    return part


def collect(own: torch.Tensor, shape: torch.Size, group: RankGroup) -> torch.Tensor:
    """On rank 0 the whole tensor of `shape`, on the CPU, made of every rank's `own` rows; on others `own`. Every rank calls it."""
    if group.rank > 0:
        group.send_part(own)
        return own
    whole = torch.empty(shape, dtype=own.dtype)
    whole[rows_of(len(whole), 0, group.size)].copy_(own)
    for rank in range(1, group.size):
        rows = whole[rows_of(len(whole), rank, group.size)]
        received = rows if own.device.type == "cpu" else torch.empty_like(rows, device=own.device)
        group.receive_part(received, rank)
        if received is not rows:
            rows.copy_(received)
    return whole
