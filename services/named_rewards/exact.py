"""`exact`: the answer is the reference."""

from __future__ import annotations


def score(prompt: str, answer: str, reference: str) -> float:
    """1 if answer and reference are the same text, white space at both ends aside; else 0."""
    return float(answer.strip() == reference.strip())
