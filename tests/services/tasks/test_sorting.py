"""The sorting task: what its prompts, teachers and rewards promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ConfigError
from services.tasks import get_task
from services.tasks.protocol import Reference, Task
from services.tasks.sorting import SortingTask

ROOT = Path(__file__).resolve().parents[3]
TASK: Task = SortingTask()
EOS = TASK.special.eos
DIGITS = range(4, 14)


def reward(digits: list[int], answer: list[int]) -> float:
    prompt = (TASK.special.bos, *digits, TASK.special.sep)
    return TASK.reward(prompt, tuple(answer), (*sorted(digits), EOS))


def tokens_of(reference: Reference) -> tuple[int, ...]:
    assert isinstance(reference, tuple)
    return reference


def slow_reward(answer: tuple[int, ...], reference: tuple[int, ...]) -> float:
    left, right = list(reference[:-1]), 0
    for token in answer:
        right += token == min(left, default=EOS)
        if token in left:
            left.remove(token)
    return right / max(len(answer), len(reference))


def test_a_prompt_holds_its_digits_and_its_reference_is_them_sorted_then_the_end() -> None:
    for index in range(200):
        prompt = TASK.prompt(index, seed=3)
        digits = prompt.tokens[1:-1]
        assert (prompt.tokens[0], prompt.tokens[-1]) == (TASK.special.bos, TASK.special.sep)
        assert set(digits) <= set(DIGITS)
        assert prompt.reference == (*sorted(digits), EOS)
        assert 8 <= len(digits) <= 48
        assert max(prompt.tokens) < TASK.vocab_size


def test_the_order_of_prompts_depends_on_the_seed_alone() -> None:
    assert [TASK.prompt(index, 1) for index in range(20)] == [SortingTask().prompt(index, 1) for index in range(20)]
    assert [TASK.prompt(index, 1) for index in range(20)] != [TASK.prompt(index, 2) for index in range(20)]


def test_prompts_are_the_same_in_every_process_and_version() -> None:
    probe = "from services.tasks import get_task; t = get_task('sorting'); print(t.prompt(5, 11).tokens, t.demonstration(5, 11)[1])"
    lines = {
        subprocess.run(
            [sys.executable, "-c", probe], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert lines == {
        "(1, 10, 7, 12, 13, 13, 7, 11, 7, 3) (13, 12, 12, 9, 11, 11, 11, 5, 5, 11, 11, 10, 10, 9, 8, 8, 8, 8, 8, 8, 6, 5, 5, 5, 4, 2)\n"
    }


def test_validation_prompts_are_drawn_apart_from_the_plans_and_the_lessons() -> None:
    validation = [TASK.validation(index, 0) for index in range(100)]
    assert validation == [SortingTask().validation(index, 0) for index in range(100)]
    long = {prompt.tokens for prompt in validation if len(prompt.tokens) > 12}
    assert len(long) > 30
    assert not long & {TASK.prompt(index, 0).tokens for index in range(1_000)}
    assert not long & {TASK.demonstration(index, 0)[0].tokens for index in range(1_000)}


def test_tokens_stand_for_text_that_people_can_read() -> None:
    prompt = TASK.prompt(5, 11)
    assert TASK.text(prompt.tokens) == "63899373="
    assert TASK.text(tokens_of(prompt.reference)) == "33367899"
    assert TASK.text((15, 0, 99)) == "??"


def test_answers_have_a_tail_the_longest_prompts_are_rare() -> None:
    lengths = sorted(len(TASK.prompt(index, 0).reference) for index in range(1_000))
    assert lengths[-1] > 45
    assert lengths[500] < 22
    assert len(set(lengths)) > 30


def test_lengths_fit_what_the_task_states() -> None:
    for index in range(500):
        prompt, answer = TASK.demonstration(index, 0)
        assert len(prompt.tokens) <= TASK.max_prompt_length
        assert len(answer) <= TASK.max_response_length


def test_a_lesson_is_a_permutation_of_its_digits_and_no_prompt_of_the_plan() -> None:
    plan = {TASK.prompt(index, 0).tokens for index in range(500) if len(TASK.prompt(index, 0).tokens) > 10}
    for index in range(500):
        prompt, answer = TASK.demonstration(index, 0)
        assert sorted(answer) == sorted(prompt.reference)
        assert answer[-1] == EOS
        assert prompt.tokens not in plan


def test_teachers_disagree_and_score_low_but_careful_upward_ones_would_be_right() -> None:
    def score(task: SortingTask) -> float:
        lessons = [task.demonstration(index, 0) for index in range(500)]
        return fmean(task.reward(prompt.tokens, answer, tokens_of(prompt.reference)) for prompt, answer in lessons)

    assert 0.3 < score(SortingTask()) < 0.55
    assert score(SortingTask(downwards=0.0, carelessness=0.0)) == 1.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([4, 5, 5, 9, EOS], 1.0),
        ([], 0.0),
        ([4, 5, 5, 9], 4 / 5),  # the end is missing
        ([4, 5, EOS], 2 / 5),  # the end comes too early
        ([5, 4, 5, 9, EOS], 4 / 5),  # a mistake costs itself only
        ([9, 5, 5, 4, EOS], 2 / 5),  # downwards: the last digit and the end are right
        ([4, 4, 5, 5, 9, EOS], 5 / 6),  # a digit too many
        ([4, 5, 5, 9, 9, 9, EOS], 5 / 7),
        ([4, 5, 5, 9, EOS, EOS], 5 / 6),  # nothing counts after the end
        ([0, 3, 15, 14, 4], 1 / 5),
    ],
)
def test_the_reward_counts_tokens_that_are_right_given_those_before(answer: list[int], expected: float) -> None:
    assert reward([5, 9, 4, 5], answer) == pytest.approx(expected)


@given(
    st.lists(st.sampled_from(DIGITS), min_size=1, max_size=12), st.lists(st.integers(0, 15).filter(lambda token: token != EOS), max_size=16)
)
def test_the_reward_is_that_of_a_plain_count_and_1_for_the_reference_only(digits: list[int], tokens: list[int]) -> None:
    reference = (*sorted(digits), EOS)
    for answer in ((*tokens, EOS), tuple(tokens)):
        value = TASK.reward((), answer, reference)
        assert value == pytest.approx(slow_reward(answer, reference))
        assert 0 <= value <= 1
        assert (value == 1) == (answer == reference)


@given(st.lists(st.sampled_from(DIGITS), min_size=1, max_size=20), st.lists(st.integers(0, 19), min_size=20, max_size=20))
def test_a_permutations_reward_is_the_share_of_its_steps_that_took_the_smallest_digit_left(digits: list[int], choices: list[int]) -> None:
    left = sorted(digits)
    answer: list[int] = []
    careful = 0
    for choice in choices[: len(digits)]:
        taken = left[choice % len(left)]
        careful += taken == left[0]
        left.remove(taken)
        answer.append(taken)
    assert reward(digits, [*answer, EOS]) == pytest.approx((careful + 1) / (len(digits) + 1))


def test_the_registry_knows_the_task_and_names_the_nearest_one() -> None:
    assert get_task("sorting").name == "sorting"
    with pytest.raises(ConfigError, match=r"no built-in task 'sort', only sorting; did you mean sorting\?"):
        get_task("sort")


def test_limits_that_cannot_be_drawn_from_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_digits is 5, max_digits 4"):
        SortingTask(min_digits=5, max_digits=4)


def test_a_task_needs_no_torch() -> None:
    probe = "import sys, services.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=False).returncode == 0
