"""Counts the tokens that vLLM generates, step by step, through its own seam for such measures."""

from __future__ import annotations

from collections.abc import Callable

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats


def token_counter(count: Callable[[int], None]) -> Callable[[VllmConfig, int], StatLoggerBase]:
    """A factory for `AsyncLLM`; `count` gets the tokens of each step."""

    class TokenCounter(StatLoggerBase):  # type: ignore[misc]  # vLLM is not in every environment
        def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
            """Nothing of either is used."""

        def record(
            self,
            scheduler_stats: SchedulerStats | None,
            iteration_stats: IterationStats | None,
            mm_cache_stats: MultiModalCacheStats | None = None,
            engine_idx: int = 0,
        ) -> None:
            """Called after each step."""
            if iteration_stats is not None:
                count(iteration_stats.num_generation_tokens)

        def log_engine_initialized(self) -> None:
            """Nothing to say."""

    return TokenCounter
