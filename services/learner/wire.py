"""Weights as they are published: what replicas load, and what digests are taken of.

learner.weights() ──as_published(…, dtype)──▶ file, digest        checkpoints keep what the learner has
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from services.learner.digests import weights_digest
from services.learner.plain import Plain
from services.learner.tensor_file import Later, LaterTensors

if TYPE_CHECKING:
    import torch

AS_TRAINED = ""
"""The dtype of a publication whose weights are those of the learner, bit for bit."""


def as_published(weights: Mapping[str, torch.Tensor], dtype: str) -> Mapping[str, torch.Tensor]:
    """The weights with every floating-point tensor rounded to `dtype` (`WeightsPublished.dtype`); without one, the weights themselves."""
    if dtype == AS_TRAINED:
        return weights
    import torch

    wanted = {"bfloat16": torch.bfloat16}[dtype]
    if isinstance(weights, LaterTensors):
        return LaterTensors({name: _rounded(later, wanted) for name, later in weights.later.items()})
    return {name: tensor.to(wanted) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}


def published_digest(weights: Mapping[str, torch.Tensor], dtype: str) -> str:
    """The digest that a publication of the weights has."""
    return weights_digest(as_published(weights, dtype))


def _rounded(later: Later | Plain, dtype: torch.dtype) -> Later | Plain:
    def take() -> torch.Tensor:
        return later.take().to(dtype)

    return Later(later.shape, dtype, take) if "float" in later.kind else later
