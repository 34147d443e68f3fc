"""Makes the learner that a configuration asks for: one process, or several ranks."""

from __future__ import annotations

from services.agreement import Publishing
from services.learner.config import LearnerConfig
from services.learner.protocol import Learner


def make_model_learner(
    config: LearnerConfig, total_steps: int, publishing: Publishing, *, device: str = "", offloaded: bool = False
) -> Learner:
    """With the initial weights. `device`: cores or GPUs that ranks share, empty: any. Raises ConfigError, LearnerError."""
    if config.ranks > 1:
        from services.learner.sharded.lead import ShardedLearner

        return ShardedLearner(config, total_steps, publishing=publishing, device=device, offloaded=offloaded)
    from services.learner.hf import HfLearner

    return HfLearner(config, total_steps, publishing=publishing, offloaded=offloaded)
