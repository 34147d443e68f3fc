"""What transformers calls things depends on its version: vLLM 0.32 wants one before 5.20, ours is newer."""

from __future__ import annotations

import inspect

from transformers import PreTrainedModel


def cache_argument(model: PreTrainedModel) -> str:
    """Under which name the model's forward takes its cache. One that only hands arguments on takes it as the one that it extends does."""
    for kind in type(model).__mro__:
        names = inspect.signature(vars(kind)["forward"]).parameters if "forward" in vars(kind) else {}
        for name in ("cache", "past_key_values"):
            if name in names:
                return name
    return "past_key_values"


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Lets the model's layers compute again in the backward pass what they would have to keep for it."""
    settings = {"use_reentrant": False}
    if "activation_checkpointing_enable" in dir(PreTrainedModel):
        model.activation_checkpointing_enable(settings)
    else:
        model.gradient_checkpointing_enable(settings)
