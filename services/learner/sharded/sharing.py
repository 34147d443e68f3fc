"""Who computes which answers of a batch.

    answers, longest samples first   a a a b b c c d e f g h      cut into rounds × ranks chunks of equal numbers of tokens
    round 0                          rank 0: a a a   rank 1: b b  neighbours have similar lengths, so a round takes its ranks equally long
    round 1                          rank 0: c c d   rank 1: e f g h

Every rank has as many passes as every other, for each of them is a collective; one without an answer of its own repeats the shortest of the
batch with no share in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.learner.passes import Layout, ScoredAnswer, cut


def share_out(
    answers: Sequence[ScoredAnswer], ranks: int, layout: Layout, most_answer_tokens: int, most_tokens: int
) -> list[list[list[ScoredAnswer]]]:
    """For each rank its passes, equally many, together every answer once (at least one is given).

    A pass holds at most `most_answer_tokens` of answers and `most_tokens` with the prompts, unless one answer alone is over that.
    """
    costs = _costs(answers, layout)
    rounds = max(1, -(-sum(costs) // (ranks * most_tokens)))

    def fits(chunk: Sequence[ScoredAnswer]) -> bool:
        return len(chunk) <= 1 or (
            sum(len(answer.tokens) for answer in chunk) <= most_answer_tokens and len(cut(chunk, layout, most_tokens)) == 1
        )

    chunks = _even(answers, costs, rounds * ranks)
    while rounds < len(answers) and not all(fits(chunk) for chunk in chunks):
        rounds += 1
        chunks = _even(answers, costs, rounds * ranks)
    idle = [replace(min(answers, key=lambda answer: len(answer.prompt) + len(answer.tokens)), share=0.0)]
    return [[chunks[turn * ranks + rank] or idle for turn in range(rounds)] for rank in range(ranks)]


def _costs(answers: Sequence[ScoredAnswer], layout: Layout) -> list[int]:
    """Tokens that each answer adds to a pass: a packed one has each prompt once."""
    return [
        len(answer.tokens) + (0 if layout == "packed" and number and answers[number - 1].group == answer.group else len(answer.prompt))
        for number, answer in enumerate(answers)
    ]


def _even(answers: Sequence[ScoredAnswer], costs: Sequence[int], parts: int) -> list[list[ScoredAnswer]]:
    """Consecutive answers in chunks of nearly equal cost; an answer is in the chunk that its middle token falls into."""
    chunks: list[list[ScoredAnswer]] = [[] for _ in range(parts)]
    total, before = sum(costs), 0
    for answer, cost in zip(answers, costs, strict=True):
        chunks[(2 * before + cost) * parts // (2 * total)].append(answer)
        before += cost
    return chunks
