"""Published weights are the trained ones, or these rounded; what is trained and saved never is."""

from __future__ import annotations

import torch

from services.learner.digests import weights_digest
from services.learner.wire import as_published, published_digest


def test_without_a_dtype_the_weights_are_published_as_they_are() -> None:
    weights = {"w": torch.randn(5), "half": torch.randn(3).half(), "count": torch.tensor(3)}
    assert as_published(weights, "") is weights
    assert published_digest(weights, "") == weights_digest(weights)


def test_bfloat16_rounds_what_is_floating_point_and_nothing_else() -> None:
    weights = {"w": torch.tensor([1.0, 1.00390625, -0.0, float("nan")]), "count": torch.tensor(300)}
    published = as_published(weights, "bfloat16")
    assert published["w"].dtype == torch.bfloat16
    assert published["w"].tolist()[:3] == [1.0, 1.0, -0.0]  # half-way goes to even
    assert published["count"] is weights["count"]
    assert weights["w"].dtype == torch.float32
    assert published_digest(weights, "bfloat16") == weights_digest(published) != weights_digest(weights)
