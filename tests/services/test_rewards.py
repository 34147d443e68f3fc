"""Rewards in worker processes: values, every way to fail, and that no worker outlives what it works for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.reward_functions import RewardSpec, reward_digest
from services.reward_worker import checked
from services.rewards import Outcome, RewardFailure, RewardRunner
from services.tasks import get_task
from services.tasks.protocol import Prompt

ROOT = Path(__file__).resolve().parents[2]

REWARDS = """
import asyncio, os, signal, subprocess, sys, time

class Number:
    def __float__(self):
        return 0.25

def behave(prompt, answer, reference):
    kind = int(answer)
    if kind == 1:
        raise RuntimeError(f"no reward for {prompt}")
    if kind == 2:
        while True:
            pass
    if kind == 3:
        return float("nan")
    if kind == 4:
        return "0.5"
    if kind == 5:
        os._exit(3)
    if kind == 6:
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == 7:
        print("a reward may print")
        return Number()
    if kind == 8:
        return None
    if kind == 9:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        with open(reference, "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        time.sleep(60)
    if kind == 10:
        time.sleep(0.3)
    return kind / 100

async def judge(prompt, answer, reference):
    kind = int(answer)
    if kind == 1:
        raise RuntimeError(f"no judgement of {prompt}")
    if kind == 2:
        await asyncio.sleep(60)
    if kind == 3:
        return "good"
    await asyncio.sleep(0.5)
    return kind / 100

def repeat(prompt, answer, reference):
    raise RuntimeError("|".join((prompt, answer, reference)))

def worker(prompt, answer, reference):
    return float(os.getpid())

def cores(prompt, answer, reference):
    return float(len(os.sched_getaffinity(0)))

def two(prompt, answer):
    return 0.0

not_callable = 5
"""

ZERO = 4
"""Token of the digit 0 in the sorting task."""
EOS = 2
PROMPT = [1, ZERO + 1, ZERO + 1, 3]
"""`11=`"""


def spec(reward: object, digest: str = "") -> RewardSpec:
    return RewardSpec(str(reward), task="sorting", digest=digest)


def number(value: int) -> list[int]:
    """The tokens that are a number in the sorting task's text."""
    return [ZERO + int(digit) for digit in str(value)]


def tokens_of(prompt: Prompt) -> tuple[int, ...]:
    assert isinstance(prompt.reference, tuple)
    return prompt.reference


@pytest.fixture
def rewards_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(REWARDS)
    return path


def collect(runner: RewardRunner, count: int, within_s: float = 30.0) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}
    until = time.monotonic() + within_s
    while len(outcomes) < count and time.monotonic() < until:
        for key, outcome in runner.poll(0.2):
            assert key not in outcomes, "a group has one outcome"
            outcomes[key] = outcome
    assert len(outcomes) == count
    return outcomes


def score(runner: RewardRunner, *kinds: int, key: int = 0, reference: str = "") -> Outcome:
    runner.submit(key, PROMPT, [number(kind) for kind in kinds], reference)
    return collect(runner, 1)[key]


def failure(outcome: Outcome) -> RewardFailure:
    assert isinstance(outcome, RewardFailure)
    return outcome


def is_alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_until_dead(processes: Sequence[int]) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until and any(map(is_alive, processes)):
        time.sleep(0.02)
    return not any(map(is_alive, processes))


def test_a_built_in_task_scores_every_answer_of_a_group_in_order() -> None:
    prompt = get_task("sorting").prompt(0, seed=1)
    right = tokens_of(prompt)
    wrong = right[::-1]
    with RewardRunner(spec("sorting"), workers=2) as runner:
        runner.submit(7, prompt.tokens, [right, wrong, right], right)
        outcome = collect(runner, 1)[7]
    assert outcome == (1.0, get_task("sorting").reward(prompt.tokens, wrong, right), 1.0)


def test_a_function_of_a_file_may_print_and_may_return_what_becomes_a_float(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave")) as runner:
        assert score(runner, 7, 50) == (0.25, 0.5)


def test_a_function_of_a_file_reads_text_whatever_the_prompts_are_from(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:repeat")) as runner:
        runner.submit(0, PROMPT, [[*number(305), EOS]], (*number(11), EOS))
        assert failure(collect(runner, 1)[0]).detail.strip().endswith("RuntimeError: 11=|305|11")


def test_the_answers_of_a_group_are_judged_together_by_an_async_function(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:judge"), timeout_s=10.0) as runner:
        score(runner, 50)
        started = time.monotonic()
        assert score(runner, *range(10, 30)) == tuple(kind / 100 for kind in range(10, 30))
        assert time.monotonic() - started < 20 * 0.5, "one after the other it takes this long at least"


@pytest.mark.parametrize(
    ("kind", "reason", "words"),
    [(1, "raised", "RuntimeError: no judgement of 11="), (2, "timeout", "2.0 s"), (3, "not_a_number", "'good', of type str")],
)
def test_an_async_function_fails_as_others_do_and_the_next_group_is_judged(rewards_file: Path, kind: int, reason: str, words: str) -> None:
    with RewardRunner(spec(f"{rewards_file}:judge"), timeout_s=2.0) as runner:
        outcome = failure(score(runner, 50, kind, 60))
        assert (outcome.reason, outcome.answer) == (reason, 1)
        assert words in outcome.detail
        assert score(runner, 50) == (0.5,)


def test_a_named_reward_reads_text(rewards_file: Path) -> None:
    with RewardRunner(spec("number")) as runner:
        assert score(runner, 11, 12, reference="11") == (1.0, 0.0)


def test_a_file_that_is_not_what_was_planned_is_refused(rewards_file: Path) -> None:
    digest = reward_digest(rewards_file)
    with RewardRunner(spec(f"{rewards_file}:behave", digest)) as runner:
        assert score(runner, 50) == (0.5,)
    rewards_file.write_text(REWARDS + "# changed\n")
    runner = RewardRunner(spec(f"{rewards_file}:behave", digest))
    with pytest.raises(ConfigError, match=rf"is not what the run was planned with \(digest {digest}, now .*code/"):
        runner.start()


def test_of_a_long_detail_the_end_is_told() -> None:
    told = RewardFailure("raised", 3, "Traceback\n" + "x" * 5_000 + "\nKeyError: 'gold'\n").told(200)
    assert len(told) <= 200
    assert told.startswith("the reward raised (answer 3): …xxx")
    assert told.endswith("KeyError: 'gold'")


def test_a_group_without_answers_has_no_rewards(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave")) as runner:
        assert score(runner) == ()


def test_a_reward_that_raises_fails_its_group_with_the_traceback_and_the_worker_goes_on(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave")) as runner:
        outcome = failure(score(runner, 50, 1, 50))
        assert (outcome.reason, outcome.answer) == ("raised", 1)
        assert "RuntimeError: no reward for 11=" in outcome.detail
        assert "my_rewards.py" in outcome.detail
        assert score(runner, 60) == (0.6,)


@pytest.mark.parametrize(
    ("kind", "reason", "detail"),
    [(3, "not_finite", "returned nan"), (4, "not_a_number", "'0.5', of type str"), (8, "not_a_number", "NoneType")],
)
def test_a_reward_that_is_no_finite_number_says_what_came(rewards_file: Path, kind: int, reason: str, detail: str) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave")) as runner:
        outcome = failure(score(runner, kind))
    assert outcome.reason == reason
    assert detail in outcome.detail


def test_a_reward_that_never_returns_is_ended_in_time_and_only_its_own_group_fails(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave"), workers=1, timeout_s=2.0) as runner:
        for key in range(6):
            runner.submit(key, PROMPT, [number(50), number(2 if key == 2 else 60)], "")
        outcomes = collect(runner, 6)
    late = failure(outcomes.pop(2))
    assert (late.reason, late.answer) == ("timeout", 1)
    assert "2.0 s" in late.detail
    assert set(outcomes.values()) == {(0.5, 0.6)}


def test_the_time_limit_is_one_rewards_not_a_groups(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave"), timeout_s=0.01) as runner:
        runner.allow(1.5)  # as a live run may
        assert score(runner, *[10] * 6) == (0.1,) * 6


def test_rewards_that_came_while_nobody_polled_are_not_late(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave"), timeout_s=1.5) as runner:
        runner.submit(0, PROMPT, [number(10)], "")
        assert runner.poll(0) == []
        time.sleep(2.0)
        assert collect(runner, 1) == {0: (0.1,)}


@pytest.mark.parametrize(("kind", "exit_code"), [(5, 3), (6, -signal.SIGSEGV)])
def test_a_worker_that_dies_is_replaced_and_the_groups_behind_it_are_computed(rewards_file: Path, kind: int, exit_code: int) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave"), workers=1) as runner:
        for key in range(4):
            runner.submit(key, PROMPT, [number(kind if key == 0 else 50)], "")
        outcomes = collect(runner, 4)
    dead = failure(outcomes.pop(0))
    assert (dead.reason, dead.answer) == ("died", 0)
    assert f"exit code {exit_code}" in dead.detail
    assert set(outcomes.values()) == {(0.5,)}


def test_what_a_late_reward_has_started_ends_with_it(rewards_file: Path, tmp_path: Path) -> None:
    note = tmp_path / "processes"
    with RewardRunner(spec(f"{rewards_file}:behave"), timeout_s=1.0) as runner:
        assert failure(score(runner, 9, reference=str(note))).reason == "timeout"
        assert wait_until_dead([int(process) for process in note.read_text().split()])


def test_a_large_group_behind_a_busy_worker_blocks_nobody(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave"), workers=1) as runner:
        runner.submit(0, PROMPT, [number(10)] * 7, "")
        runner.submit(1, PROMPT, [number(50) + [EOS] * 200_000] * 8, "")
        started = time.monotonic()
        runner.poll(0)
        assert time.monotonic() - started < 1.0
        assert collect(runner, 2)[1] == (0.5,) * 8


def test_several_workers_share_the_groups(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:worker"), workers=3) as runner:
        for key in range(12):
            runner.submit(key, PROMPT, [number(0)], "")
        processes = set(collect(runner, 12).values())
    assert len(processes) == 3


def test_workers_run_on_the_cores_they_are_given(rewards_file: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with RewardRunner(spec(f"{rewards_file}:cores"), cores=[core]) as runner:
        assert score(runner, 0) == (1.0,)


def test_groups_may_be_submitted_by_another_thread_while_this_one_waits(rewards_file: Path) -> None:
    with RewardRunner(spec(f"{rewards_file}:behave")) as runner:
        timer = threading.Timer(0.2, runner.submit, (5, PROMPT, [number(50)], ""))
        timer.start()
        started = time.monotonic()
        outcomes = runner.poll(30.0)
        timer.join()
    assert outcomes == [(5, (0.5,))]
    assert time.monotonic() - started < 10


def test_a_thousand_groups_of_a_trivial_reward_take_seconds_and_none_is_lost() -> None:
    prompt = get_task("sorting").prompt(3, seed=1)
    right = tokens_of(prompt)
    with RewardRunner(spec("sorting"), workers=1) as runner:
        for key in range(1_000):
            runner.submit(key, prompt.tokens, [right] * 8, right)
        assert set(collect(runner, 1_000, within_s=20).values()) == {(1.0,) * 8}


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("sortin", "data.reward is 'sortin': there are exact, number, math_verify, sorting, .*; did you mean sorting?"),
        ("exakt", r"did you mean exact\?"),
        ("missing.py:behave", r"missing\.py is no Python file"),
        ("{file}:nothing", "has no function nothing, only behave, judge, repeat, worker, cores, two"),
        ("{file}:not_callable", "has no function not_callable"),
        ("{file}:two", r"called as reward\(prompt, answer, reference\), which its parameters \(prompt, answer\) do not allow"),
        ("{broken}:behave", r"importing .*broken\.py failed:\n(.|\n)*ZeroDivisionError"),
        ("{ends}:behave", "not ready"),
    ],
)
def test_a_reward_that_cannot_be_loaded_is_told_at_the_start(rewards_file: Path, tmp_path: Path, reward: str, message: str) -> None:
    broken, ends = tmp_path / "broken.py", tmp_path / "ends.py"
    broken.write_text("1 / 0\n")
    ends.write_text("import os\nos._exit(1)\n")
    runner = RewardRunner(spec(reward.format(file=rewards_file, broken=broken, ends=ends)))
    with pytest.raises(ConfigError, match=message):
        runner.start()


def test_workers_die_with_their_parent_even_in_the_middle_of_a_reward(rewards_file: Path) -> None:
    parent = textwrap.dedent(f"""
        import sys, time
        from services.reward_functions import RewardSpec
        from services.rewards import RewardRunner
        runner = RewardRunner(RewardSpec({f"{rewards_file}:worker"!r}, task="sorting"), workers=2)
        runner.start()
        for key in range(8):
            runner.submit(key, [1, 3], [[4]], "")
        workers = set()
        while len(workers) < 2:
            workers.update(int(outcome[0]) for _, outcome in runner.poll(1.0))
        sys.stdout.write(" ".join(map(str, workers)) + "\\n")
        sys.stdout.flush()
        time.sleep(60)
    """)
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with process:
        assert process.stdout is not None
        workers = [int(worker) for worker in process.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        process.kill()
    assert wait_until_dead(workers)


def test_close_ends_a_worker_in_the_middle_of_a_reward(rewards_file: Path) -> None:
    runner = RewardRunner(spec(f"{rewards_file}:behave"))
    runner.start()
    runner.submit(0, PROMPT, [number(2)], "")
    runner.poll(0.1)
    started = time.monotonic()
    runner.close()
    assert time.monotonic() - started < 5


def test_a_worker_needs_no_torch() -> None:
    probe = "import sys, services.reward_worker, services.rewards, services.data.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=False).returncode == 0


def test_a_number_that_is_too_large_is_no_reward() -> None:
    assert checked(10**400)[0] == "not_a_number"
