"""What vLLM calls in each of its processes (entry point `vllm.general_plugins`), before it builds anything.

    replica ──starts──▶ engine core ──starts──▶ workers (with tensor parallelism)
                           └── register ──┘       each dies with its parent, and each knows our way to take weights

It must be cheap to import and do nothing in processes that are not ours: every vLLM of this Python environment calls it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal

from bus.die_with_parent import die_with

MARK = "SWINGSHIFT_VLLM"
"""Set in the environment while a replica starts its engine."""
FILE_TRANSFER = "swingshift_file"
"""The weight transfer backend under which our engine is registered."""


def register() -> None:
    """Makes this process end with its parent, and registers our weight transfer."""
    if MARK not in os.environ:
        return
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with(parent.pid, signal.SIGKILL)
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    # It is there already in a process that was forked.
    with contextlib.suppress(ValueError):
        WeightTransferEngineFactory.register_engine(FILE_TRANSFER, "services.engines.vllm_transfer", "FileWeightTransferEngine")
