"""Loads a Hugging Face causal language model for training, and finds out which layout of a pass it can take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch.func import functional_call
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from bus.errors import ConfigError
from services.learner.config import LearnerConfig
from services.learner.packed_attention import PACKED, additive_mask, spans_on
from services.learner.passes import Layout, Pass, ScoredAnswer, build
from services.transformers_lock import MAKING_A_MODEL
from services.transformers_names import checkpoint_activations

ATTENTION = {"sdpa": PACKED, "eager": "eager"}
"""Setting `actor.attention` -> what transformers is asked for."""
_PROBE_TOLERANCE = 1e-3
"""Log-probabilities of a model that honours the packed mask differ by rounding only, of one that does not by far more."""


def load_model(config: LearnerConfig, device: str) -> PreTrainedModel:
    """The model of folder `config.model` in float32 on `device`, dropout off. Raises ConfigError when it is not a complete one."""
    folder = Path(config.model)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model {config.model} is no Hugging Face model folder: there is no {folder / 'config.json'}")
    transformers_logging.disable_progress_bar()
    try:
        with MAKING_A_MODEL:
            loaded: object = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation=ATTENTION[config.attention],
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {config.model} cannot be loaded as a causal language model: {error}") from error
    model, loading = cast(tuple[PreTrainedModel, dict[str, set[str]]], loaded)
    if loading["missing_keys"]:
        raise ConfigError(f"model {config.model} lacks weights {sorted(loading['missing_keys'])[:5]}: the folder is incomplete")
    # Ratios compare the same function at two times; dropout would make it another one at each call. So a step draws no random number.
    module: torch.nn.Module = model.eval().requires_grad_(True)
    module.to(device)
    if config.gradient_checkpointing:
        _checkpoint_layers(model)
    return model


def _checkpoint_layers(model: PreTrainedModel) -> None:
    """Raises ConfigError for a model whose layers cannot be computed again, or not alike."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    dropout = {name: rate for name, rate in model.config.to_dict().items() if name.endswith(("dropout", "pdrop")) and rate}
    if not layers or not model.supports_gradient_checkpointing:
        raise ConfigError(f"actor.gradient_checkpointing is true, a {type(model).__name__} has no layers for it: set it to false")
    if dropout:
        raise ConfigError(
            f"actor.gradient_checkpointing is true and the model's configuration has dropout {dropout}, which would be active with it: "
            "set these to 0 in its config.json, or actor.gradient_checkpointing to false"
        )
    checkpoint_activations(model)
    for layer in layers:
        layer.training = True  # what is asked for when it decides; all below it stays in eval mode


def own_tensors(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state without the further names of tied weights: each under the first of its names, as in a saved Hugging Face folder."""
    named: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in state.items():
        storage = (tensor.data_ptr(), tensor.shape)
        if storage not in seen:
            seen.add(storage)
            named[name] = tensor
    return named


def vocabulary_size(model: PreTrainedModel) -> int:
    """Number of token ids that the model embeds."""
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    return embeddings.num_embeddings


def answer_logits(model: PreTrainedModel, tensors: Pass, parameters: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
    """Logits [tokens, vocabulary] of the positions that predict the pass's answer tokens, one row a token.

    With other `parameters` than the model's own, they are those that the model would give if it had these.
    """
    inputs: dict[str, object] = {
        "input_ids": tensors.input_ids,
        "position_ids": tensors.position_ids,
        "logits_to_keep": tensors.keep,
        "use_cache": False,
        **_visibility(model, tensors),
    }
    module: torch.nn.Module = model
    output = module(**inputs) if parameters is None else functional_call(module, dict(parameters), kwargs=inputs)
    logits: torch.Tensor = output.logits.flatten(0, 1)
    return logits if tensors.pick is None else logits.index_select(0, tensors.pick)


def _visibility(model: PreTrainedModel, tensors: Pass) -> dict[str, object]:
    """What tells the model's attention which tokens see which."""
    if not tensors.spans:
        return {"attention_mask": tensors.attention_mask}
    device = tensors.input_ids.device
    if model.config._attn_implementation != PACKED:  # noqa: SLF001  (transformers has no public name for it)
        return {"attention_mask": additive_mask(tensors.spans, device)}
    # A mask of four dimensions is handed on as it is: none of [L, L] is made, and nobody reads this one.
    return {"attention_mask": torch.zeros(1, 1, 1, 1, device=device), "spans": spans_on(tensors.spans, device)}


def choose_layout(model: PreTrainedModel) -> Layout:
    """`packed` when every layer attends to all that a mask lets it see and a probe agrees with `padded`; else `padded`."""
    settings = model.config.to_dict()
    layer_types = settings.get("layer_types") or ["full_attention"]
    if set(layer_types) != {"full_attention"} or (settings.get("sliding_window") and not settings.get("layer_types")):
        return "padded"
    vocabulary = vocabulary_size(model)
    tokens = [place % vocabulary for place in range(16)]
    probe = [
        ScoredAnswer(0, tuple(tokens[:5]), tuple(tokens[5:8]), (0.0,) * 3, 0.0, 0.0),
        ScoredAnswer(0, tuple(tokens[:5]), tuple(tokens[8:13]), (0.0,) * 5, 0.0, 0.0),
        ScoredAnswer(1, tuple(tokens[13:16]), tuple(tokens[2:6]), (0.0,) * 4, 0.0, 0.0),
    ]
    device = next(model.parameters()).device
    with torch.no_grad():
        padded = answer_logits(model, build(probe, "padded").to(device)).log_softmax(-1)
        try:
            packed = answer_logits(model, build(probe, "packed").to(device)).log_softmax(-1)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return "padded"
    return "packed" if bool((padded - packed).abs().max() < _PROBE_TOLERANCE) else "padded"
