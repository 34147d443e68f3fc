"""How far the policy is from the reference model, estimated from the one token that was sampled."""

from __future__ import annotations

import torch

from services.learner.config import KlEstimate
from services.learner.surrogate import LOG_RATIO_LIMIT


def kl_divergence(kind: KlEstimate, logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Estimate of KL(π || π_ref) per token, shape [tokens]; the gradient flows through `logprobs`.

        d = log π_ref - log π
        k1   -d               unbiased, may be negative; as a loss its gradient is 0 on average over what π itself samples
        k3   exp(d) - d - 1   unbiased, never negative, lower variance

    Schulman 2020, "Approximating KL Divergence"; k3 as a loss: GRPO (arXiv 2402.03300), equation 4.
    """
    difference = (reference_logprobs.detach() - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return -difference if kind == "k1" else difference.exp() - difference - 1
