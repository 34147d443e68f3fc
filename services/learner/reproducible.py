"""Sets process-wide what the bits of a learner depend on."""

from __future__ import annotations

import os

import torch

from services.learner.config import LearnerConfig


def make_reproducible(config: LearnerConfig) -> None:
    """Torch's number of threads, and its use of deterministic algorithms."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if not config.deterministic:
        return
    if config.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses deterministic mode without it
    torch.use_deterministic_algorithms(True)
    # Filling every fresh tensor with NaN finds reads of uninitialised memory, at a price; no operation used here has them.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
