"""A whole step once more, in float64: one forward pass an answer, one token at a time, no batching."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from services.learner.config import LearnerConfig
from services.samples import Answer, SampleGroup
from tests.services.learner.slow import slow_advantages, slow_kl, slow_overlong, slow_policy_loss, slow_weights


def model_in_float64(folder: Path, weights: dict[str, torch.Tensor] | None = None) -> PreTrainedModel:
    """The model of a folder, with other weights if there are any."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    if weights is not None:
        model.load_state_dict(weights, strict=False)
    return model


class SlowStep:
    """Loss, gradients (in `model`) and measures of one batch. `old`: the model of the cycle's start, None when that is `model`."""

    def __init__(
        self,
        model: PreTrainedModel,
        batch: Sequence[SampleGroup],
        config: LearnerConfig,
        old: PreTrainedModel | None = None,
        reference: PreTrainedModel | None = None,
    ) -> None:
        self.config, self.batch = config, batch
        self.model, self.old, self.reference = model, old, reference
        self.differences: list[float] = []
        self.entropies: list[float] = []
        self.divergences: list[float] = []
        self.weights: list[float] = []
        self.clipped: list[str] = []
        answers: list[list[torch.Tensor]] = []
        for group, advantages in zip(batch, self.advantages(), strict=True):
            for answer, advantage in zip(group.answers, advantages, strict=True):
                answers.append(self.losses(group, answer, advantage))
        self.loss = self.aggregate([answer for answer in answers if answer])
        torch.autograd.backward(self.loss)
        squares = [float((parameter.grad**2).sum()) for parameter in model.parameters() if parameter.grad is not None]
        self.grad_norm = math.sqrt(math.fsum(squares))

    def advantages(self) -> list[list[float]]:
        config, rewards = self.config, []
        for group in self.batch:
            rewards.append([answer.reward for answer in group.answers])
            if config.overlong_buffer_len is not None:
                assert config.max_response_length is not None
                for index, answer in enumerate(group.answers):
                    rewards[-1][index] += slow_overlong(
                        len(answer.tokens), config.max_response_length, config.overlong_buffer_len, config.overlong_penalty_factor
                    )
        lengths = [[len(answer.tokens) for answer in group.answers] for group in self.batch]
        return slow_advantages(config.adv_estimator, rewards, lengths, config.norm_adv_by_std_in_grpo)

    def distributions(self, model: PreTrainedModel, group: SampleGroup, answer: Answer) -> list[torch.Tensor]:
        """Of each of the answer's tokens."""
        logits = model(input_ids=torch.tensor([group.prompt_tokens + answer.tokens])).logits[0]
        first = len(group.prompt_tokens) - 1
        return [torch.softmax(logits[first + place] / self.config.temperature, dim=0) for place in range(len(answer.tokens))]

    def probabilities(self, model: PreTrainedModel, group: SampleGroup, answer: Answer) -> list[float]:
        return [row[token].item() for row, token in zip(self.distributions(model, group, answer), answer.tokens, strict=True)]

    def losses(self, group: SampleGroup, answer: Answer, advantage: float) -> list[torch.Tensor]:
        """One a token."""
        config = self.config
        distributions = self.distributions(self.model, group, answer)
        rollout = [math.exp(value) for value in answer.logprobs]
        old = rollout
        if config.old_logprobs == "recompute":
            old = self.probabilities(self.old or self.model, group, answer)
        weights = [1.0] * len(old)
        if config.old_logprobs == "recompute" and config.rollout_is != "none":
            low = 1 / config.rollout_is_threshold if config.rollout_is_threshold_low is None else config.rollout_is_threshold_low
            limits = (config.rollout_is_limit, config.rollout_is_threshold, low)
            weights = slow_weights(old, rollout, [len(old)], config.rollout_is, *limits)
        self.weights += weights
        terms = []
        for place, token in enumerate(answer.tokens):
            row, probability = distributions[place], distributions[place][token]
            self.differences.append(abs(math.log(probability.item()) - answer.logprobs[place]))
            entropy = -(row * row.log()).sum()
            self.entropies.append(entropy.item())
            loss = weights[place] * self.policy_loss(probability, old[place], advantage)
            if self.reference is not None:
                theirs = self.probabilities(self.reference, group, answer)[place]
                self.divergences.append(slow_kl(config.kl_loss_type, probability.item(), theirs))
                ratio = theirs / probability
                divergence = -ratio.log() if config.kl_loss_type == "k1" else ratio - 1 - ratio.log()
                loss = loss + config.kl_loss_coef * divergence
            terms.append(loss - config.entropy_coeff * entropy)
        return terms

    def policy_loss(self, probability: torch.Tensor, old: float, advantage: float) -> torch.Tensor:
        ratio = probability / old
        if self.config.policy_loss == "unclipped":
            self.clipped.append("")
            return -ratio * advantage
        loss, clipped = slow_policy_loss(ratio.item(), advantage, self.config.clip_low, self.config.clip_high)
        self.clipped.append(clipped)
        return loss * torch.ones_like(ratio) if clipped else -ratio * advantage

    def aggregate(self, answers: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        match self.config.loss_agg_mode:
            case "token-mean":
                return torch.stack([loss for answer in answers for loss in answer]).mean()
            case "seq-mean-token-mean":
                return torch.stack([torch.stack(list(answer)).mean() for answer in answers]).mean()
            case "seq-mean-token-sum-norm":
                norm = self.config.loss_scale_factor or self.config.max_response_length
                assert norm is not None
                return torch.stack([torch.stack(list(answer)).sum() for answer in answers]).mean() / norm
