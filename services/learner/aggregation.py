"""How the losses of a batch's tokens become one number: what each token's share is.

Worked out for the whole batch, so that the loss does not depend on how it is split into passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.learner.config import LossAggregation


def token_shares(mode: LossAggregation, num_tokens: Sequence[Sequence[int]], norm: float | None) -> list[list[float]]:
    """What a token of each answer is multiplied by before all are added up, shaped like `num_tokens` (one sequence a group).

    With T tokens in S answers that have any, and n of them in this one:

        token-mean                1 / T            DAPO (arXiv 2503.14476), equation 8
        seq-mean-token-mean       1 / (S * n)      GRPO (arXiv 2402.03300), equation 3
        seq-mean-token-sum-norm   1 / (S * norm)   Dr. GRPO (arXiv 2503.20783), where norm is the longest answer allowed

    Raises ValueError when the last one has no norm.
    """
    tokens = sum(sum(group) for group in num_tokens)
    answers = sum(count > 0 for group in num_tokens for count in group)

    def share(count: int) -> float:
        if count == 0:
            return 0.0
        match mode:
            case "token-mean":
                return 1 / tokens
            case "seq-mean-token-mean":
                return 1 / (answers * count)
            case "seq-mean-token-sum-norm":
                if norm is None:
                    raise ValueError("loss_agg_mode seq-mean-token-sum-norm needs loss_scale_factor or max_response_length")
                return 1 / (answers * norm)

    return [[share(count) for count in group] for group in num_tokens]
