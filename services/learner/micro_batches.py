"""The micro-batch rule: which samples of a batch share one forward and backward pass.

Pure, so that the trainer's core decides it and the log records it: another split sums gradients in another order and gives other bits.
"""

from __future__ import annotations

from collections.abc import Sequence


def plan_micro_batches(num_tokens_of_each_sample: Sequence[int], budget: int) -> list[list[int]]:
    """Indices 0 .. n-1 in groups of at most `budget` tokens each, every index exactly once.

    Samples are taken from the longest to the shortest (ties: lower index first) and cut into runs as long as the budget allows, so that
    neighbours have similar lengths, hence little padding, and the pass that needs most memory comes first. A sample that alone is over
    the budget gets a pass of its own. Raises ValueError for a budget below 1 or a negative number of tokens.
    """
    if budget < 1:
        raise ValueError(f"the budget of a micro batch is {budget} tokens: it must be at least 1")
    if any(num_tokens < 0 for num_tokens in num_tokens_of_each_sample):
        raise ValueError(f"a sample has a negative number of tokens: {list(num_tokens_of_each_sample)}")
    longest_first = sorted(range(len(num_tokens_of_each_sample)), key=lambda index: (-num_tokens_of_each_sample[index], index))
    plan: list[list[int]] = []
    room = 0
    for index in longest_first:
        num_tokens = num_tokens_of_each_sample[index]
        if not plan or num_tokens > room:
            plan.append([])
            room = budget
        plan[-1].append(index)
        room -= num_tokens
    return plan
