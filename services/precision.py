"""What log-probabilities are computed in, by the engines and by the trainer, and how far apart they may be for it."""

from __future__ import annotations

from pathlib import Path

from bus.events import Value
from services.config import BUILTIN, SCRIPTED, RolloutConfig, RunConfig
from services.data.model_folder import model_dtype

FLOAT32 = "float32"
EXACT = 0.001
"""Both in float32: what is left are other orders of sums."""
ROUNDED = 0.05
"""One of them in half precision: a dense model of some billion parameters shows 0.01 to 0.02."""


def engine_dtype(config: RunConfig) -> str:
    """What the engines compute in."""
    given = config.rollout.engine_kwargs.get("dtype", "auto")
    if given != "auto":
        return str(given)
    return FLOAT32 if config.model.path in (BUILTIN, SCRIPTED) else model_dtype(Path(config.model.path))


def expected_difference(config: RunConfig, wire_dtype: str) -> float:
    """The mean difference from which on something is wrong, with weights published in `wire_dtype`.

    0: it may be anything, for the two sides have different distributions.
    """
    if is_cut(config.rollout):
        return 0.0
    return EXACT if {engine_dtype(config), config.actor.dtype, wire_dtype} == {FLOAT32} else ROUNDED


_FULL = "softmax(logits / temperature)"
"""What training takes them to be."""


def is_cut(rollout: RolloutConfig) -> bool:
    """Answers are sampled from another distribution than the trainer's."""
    return bool(rollout.top_k) or rollout.top_p < 1


def logprob_space(rollout: RolloutConfig) -> str:
    """The distribution that a replica's log-probabilities are of: the one that was sampled from."""
    cut = [f"top_k {rollout.top_k}"] if rollout.top_k else []
    cut += [f"top_p {rollout.top_p:g}"] if rollout.top_p < 1 else []
    return f"{_FULL}, of {' and '.join(cut)}, renormalised" if cut else _FULL


def engine_environment(config: RunConfig) -> dict[str, Value]:
    """What a plan says of the engines' log-probabilities."""
    return {"engine_dtype": engine_dtype(config), "logprob_space": logprob_space(config.rollout)}
