"""What vLLM calls in each of its processes (entry point `vllm.general_plugins`), before it builds anything.

    replica ──starts──▶ engine core ──starts──▶ workers (with tensor parallelism)
                           └── register ──┘       each dies with its parent, and each knows our way to take weights

It must be cheap to import and do nothing in processes that are not ours: every vLLM of this Python environment calls it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal

from bus.die_with_parent import die_with

MARK = "SWINGSHIFT_VLLM"
"""Set in the environment while a replica starts its engine: the file for what goes wrong in its processes."""
FILE_TRANSFER = "swingshift_file"
"""The weight transfer backend under which our engine is registered."""


class OneLine(logging.Formatter):
    """Without the traceback, which is in the replica's own log: what happened, and the exception."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        said = record.getMessage() + (f" {type(error).__name__}: {error}" if error is not None else "")
        return " ".join(said.split())


def register() -> None:
    """Makes this process end with its parent, and registers our weight transfer."""
    if MARK not in os.environ:
        return
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with(parent.pid, signal.SIGKILL)
    errors = logging.FileHandler(os.environ[MARK], delay=True)
    errors.setLevel(logging.ERROR)
    errors.setFormatter(OneLine())
    logging.getLogger("vllm").addHandler(errors)
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    # It is there already in a process that was forked.
    with contextlib.suppress(ValueError):
        WeightTransferEngineFactory.register_engine(FILE_TRANSFER, "services.engines.vllm_transfer", "SwingshiftTransferEngine")
