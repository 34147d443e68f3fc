"""A reward of one's own: called for every answer, in worker processes, with text."""

from __future__ import annotations


def reward(prompt: str, answer: str, reference: str) -> float:
    """Half for answering with digits only, half for the right result.

    `prompt` is what the model saw, `answer` what it wrote, `reference` the `answer` column of the data. An `async def` works as well.
    """
    digits = sum(letter.isdigit() for letter in answer) / max(1, len(answer))
    return 0.5 * digits + 0.5 * (answer.strip() == reference)
