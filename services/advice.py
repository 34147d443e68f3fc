"""Settings that are legal together and seldom meant: what is likely to go wrong, with the values, and what to do."""

from __future__ import annotations

from services.config import RunConfig
from services.precision import is_cut


def advice(config: RunConfig) -> list[str]:
    """One sentence for each such combination; shown when a run is planned and when it starts."""
    return [text for text in (_no_trust_region(config), _nothing_to_compare(config), _other_distribution(config)) if text]


def _no_trust_region(config: RunConfig) -> str:
    """Importance weights without a clip grow with each step between generation and training, and so does the variance of the gradient."""
    timing = config.async_training
    if config.actor.policy_loss == "clip" or (timing.staleness_threshold == 0 and timing.trigger_parameter_sync_step == 1):
        return ""
    return (
        f"actor.policy_loss is unclipped, async_training.staleness_threshold is {timing.staleness_threshold:g} and "
        f"async_training.trigger_parameter_sync_step is {timing.trigger_parameter_sync_step}: samples are trained by weights other than "
        "those that generated them, and nothing bounds the step that one of them can cause, so training may diverge. Set "
        "actor.policy_loss to clip, or async_training.staleness_threshold to 0 and async_training.trigger_parameter_sync_step to 1"
    )


def _nothing_to_compare(config: RunConfig) -> str:
    if config.rollout.n > 1 or config.actor.adv_estimator == "reinforce_plus_plus":
        return ""
    return (
        f"rollout.n is 1 and actor.adv_estimator is {config.actor.adv_estimator}: an answer is compared with the others to its prompt, and "
        "there are none, so every advantage is 0 and nothing is learnt. Set rollout.n to at least 2, or actor.adv_estimator to "
        "reinforce_plus_plus"
    )


def _other_distribution(config: RunConfig) -> str:
    """Engines say what they sampled with, the trainer what the whole vocabulary gives: the two differ however well both compute."""
    if not is_cut(config.rollout):
        return ""
    return (
        f"rollout.top_p is {config.rollout.top_p:g} and rollout.top_k is {config.rollout.top_k}: replicas give log-probabilities of the "
        "cut, renormalised distribution that they sample from, the trainer those of the whole one, so ratios begin below 1, and a faulty "
        "engine could not be told from that. Set rollout.top_p to 1 and rollout.top_k to 0 (evaluations have settings of their own)"
    )
