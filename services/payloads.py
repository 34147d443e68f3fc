"""Names of a run's payloads, each with its writer and its last reader. The janitor removes them (services/archiver/payload_lives.py)."""

from __future__ import annotations

from bus.evaluations import prompt_of
from bus.events import GenerationRequested


def prompt_blob(sample: int) -> str:
    """Prompt tokens; rollouter -> replicas. Needed until the sample is ready or dropped and no replica works on it."""
    return f"prompt:{sample}"


def eval_prompt_blob(version: int, prompt: int) -> str:
    """Tokens of a validation prompt; rollouter -> replicas. Needed until the version's evaluation is done."""
    return f"prompt:eval-{version}-{prompt}"


def requested_prompt_blob(request: GenerationRequested) -> str:
    """The prompt that a request is about."""
    if request.evaluates is None:
        return prompt_blob(request.sample)
    return eval_prompt_blob(request.evaluates, prompt_of(request.sample))


def answer_blob(request: str, attempt: int) -> str:
    """An answer as far as this attempt got; replica -> rollouter, next replica. Needed as long as its prompt."""
    return f"answer:{request}.{attempt}"


def token_blob() -> str:
    """What the trainer and the replicas prove themselves with when weights are handed over directly; trainer -> replicas.

    Of the trainer's newest incarnation, which removes it when it ends. No entry names it, so it is in no recording.
    """
    return "token:weights"


def sample_blob(sample: int) -> str:
    """A ready sample; rollouter -> trainer, archiver. Needed until it is dropped, or no redo can need it any more."""
    return f"sample:{sample}"
