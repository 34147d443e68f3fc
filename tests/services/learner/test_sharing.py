"""How the answers of a batch are shared out over ranks, and which rows of a tensor each rank has."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from services.devices import share_of
from services.learner.passes import Layout, ScoredAnswer, cut, is_idle
from services.learner.sharded.parts import rows_of
from services.learner.sharded.sharing import share_out


def answers_of(seed: int, groups: int, longest: int) -> list[ScoredAnswer]:
    source = random.Random(seed)
    made = []
    for group in range(groups):
        prompt = tuple(range(source.randint(1, 9)))
        for _ in range(source.randint(1, 4)):
            length = source.randint(1, longest)
            made.append(ScoredAnswer(group, prompt, tuple(range(length)), (-1.0,) * length, 0.5, 0.1))
    return made


def tokens(passes: Sequence[Sequence[ScoredAnswer]]) -> int:
    return sum(len(answer.tokens) for answers in passes if not is_idle(answers) for answer in answers)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 5, 40])
def test_every_answer_is_in_one_pass_of_one_rank_and_all_ranks_have_equally_many(layout: Layout, ranks: int, groups: int) -> None:
    for seed in range(8):
        answers = answers_of(seed, groups, longest=30)
        passes = share_out(answers, ranks, layout, 60, 120)
        assert len({len(own) for own in passes}) == 1
        assert len(passes) == ranks
        # In turn, rank by rank, they are the answers in their order: neighbours, which have similar lengths, are computed at once.
        in_turn = [passes[rank][turn] for turn in range(len(passes[0])) for rank in range(ranks)]
        assert [answer for run in in_turn if not is_idle(run) for answer in run] == answers
        for run in in_turn:
            assert run
            assert len(run) == 1 or (tokens([run]) <= 60 and len(cut(run, layout, 120)) == 1)


def test_ranks_get_nearly_the_same_number_of_tokens() -> None:
    answers = sorted(answers_of(3, 200, longest=60), key=lambda answer: -len(answer.tokens))
    passes = share_out(answers, 4, "padded", 512, 1024)
    shares = [sum(len(answer.prompt) + len(answer.tokens) for run in own for answer in run) for own in passes]
    assert max(shares) - min(shares) < 0.05 * sum(shares) / 4


def test_a_rank_without_an_answer_repeats_the_shortest_one_without_a_share_in_the_loss() -> None:
    long, short = answers_of(1, 1, longest=1)[0], ScoredAnswer(7, (1,), (2,), (-1.0,), 0.5, 0.1)
    passes = share_out([long, short], 4, "packed", 60, 120)
    idle = [run for own in passes for run in own if is_idle(run)]
    assert len(idle) == 2
    assert all(run[0].tokens == (2,) and run[0].share == 0 for run in idle)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 16, 17])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_rows_of_a_rank_are_those_that_torch_would_chunk(num_rows: int, ranks: int) -> None:
    whole = torch.arange(num_rows)
    chunks = torch.chunk(whole, ranks)
    for rank in range(ranks):
        expected = chunks[rank] if rank < len(chunks) else whole[:0]
        assert torch.equal(whole[rows_of(num_rows, rank, ranks)], expected)


def test_ranks_share_out_cores_and_gpus_and_with_too_few_cores_have_the_same_ones() -> None:
    assert [share_of("0,1,2,3,4", rank, 2) for rank in range(2)] == ["0,1", "2,3,4"]
    assert [share_of("cuda:0,cuda:1", rank, 2) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert [share_of("6", rank, 2) for rank in range(2)] == ["6", "6"]
    assert share_of("", 1, 2) == ""
