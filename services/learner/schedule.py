"""The learning rate as a pure function of the step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from services.learner.config import LearnerConfig


def learning_rate(config: LearnerConfig, step: int, total_steps: int) -> float:
    """Learning rate of step `step` (from 1) in a run of `total_steps`.

    With W warm-up steps, T total steps and m = `min_lr_ratio`:

        step <= W   lr * step / (W + 1)                      (the first full rate is that of step W + 1)
        then        p = min(1, (step - W - 1) / (T - W))     (below 1 up to step T, so that no planned step is idle with m = 0)
        constant    lr
        linear      lr * (m + (1 - m) * (1 - p))
        cosine      lr * (m + (1 - m) * (1 + cos(pi * p)) / 2)

    Raises ValueError when step or total_steps is below 1.
    """
    if step < 1 or total_steps < 1:
        raise ValueError(f"learning rate of step {step} in a run of {total_steps} steps: both must be at least 1")
    warmup = config.lr_warmup_steps
    if step <= warmup:
        return config.lr * step / (warmup + 1)
    if config.lr_schedule == "constant":
        return config.lr
    progress = min(1.0, (step - warmup - 1) / max(1, total_steps - warmup))
    remaining = 1 - progress if config.lr_schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * remaining)
