"""What makes a real vLLM crash: loaded by its worker where a test asks for it."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

DEADLY = [1, 31]


class DeadlyToken(LogitsProcessor):  # type: ignore[misc]  # vLLM is not in every environment
    """Raises in the worker at one prompt, like a device that is lost."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """All are fine."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        """Nothing of them is used."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Changes nothing."""
        return logits

    def is_argmax_invariant(self) -> bool:
        """It changes nothing."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Looks at the prompts that are added."""
        for _, _, prompt, _ in batch_update.added if batch_update is not None else ():
            if prompt == DEADLY:
                raise RuntimeError("the device is lost")
