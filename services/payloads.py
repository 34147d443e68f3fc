"""Names of a run's payloads, each with its writer and its last reader, who removes it."""

from __future__ import annotations

from bus.evaluations import prompt_of
from bus.events import GenerationRequested


def prompt_blob(sample: int) -> str:
    """Prompt tokens; rollouter -> replicas. Removed by the rollouter when the sample is ready or dropped."""
    return f"prompt:{sample}"


def eval_prompt_blob(version: int, prompt: int) -> str:
    """Tokens of a validation prompt; rollouter -> replicas. Removed by the rollouter when the version's evaluation is done."""
    return f"prompt:eval-{version}-{prompt}"


def requested_prompt_blob(request: GenerationRequested) -> str:
    """The prompt that a request is about."""
    if request.evaluates is None:
        return prompt_blob(request.sample)
    return eval_prompt_blob(request.evaluates, prompt_of(request.sample))


def answer_blob(request: str, attempt: int) -> str:
    """An answer as far as this attempt got; replica -> rollouter, next replica. Removed by the rollouter with the prompt."""
    return f"answer:{request}.{attempt}"


def sample_blob(sample: int) -> str:
    """A ready sample; rollouter -> trainer, archiver. Removed by the trainer when no redo can need it any more."""
    return f"sample:{sample}"
