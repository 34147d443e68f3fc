"""From the tensors of a pass to the log-probabilities that the loss is made of."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from transformers import PreTrainedModel

from services.learner.causal_lm import answer_logits
from services.learner.config import LearnerConfig
from services.learner.passes import Pass


def answer_logprobs(
    config: LearnerConfig, model: PreTrainedModel, tensors: Pass, parameters: Mapping[str, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per answer token: its log-probability at the sampling temperature, and the distribution's entropy (its gradient if it counts).

    With other `parameters` than the model's own, they are those that the model would give if it had these.
    """
    with torch.autocast(config.device, torch.bfloat16, enabled=config.dtype == "bfloat16"):
        logits = answer_logits(model, tensors, parameters)
    log_distribution = F.log_softmax(logits.float() / config.temperature, dim=-1)
    logprobs = -F.nll_loss(log_distribution, tensors.tokens, reduction="none")
    measured = log_distribution if config.entropy_coeff else log_distribution.detach()
    return logprobs, -(measured.exp() * measured).sum(-1)
