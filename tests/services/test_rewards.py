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
from services.rewards import Outcome, RewardFailure, RewardRunner
from services.tasks import get_task

ROOT = Path(__file__).resolve().parents[2]

REWARDS = """
import os, signal, subprocess, sys, time

class Number:
    def __float__(self):
        return 0.25

def behave(prompt, answer, reference):
    kind = answer[0]
    if kind == 1:
        raise RuntimeError(f"no reward for {prompt[0]}")
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
    return answer[0] / 100

def worker(prompt, answer, reference):
    return float(os.getpid())

def cores(prompt, answer, reference):
    return float(len(os.sched_getaffinity(0)))

not_callable = 5
"""


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
    runner.submit(key, [11], [[kind] for kind in kinds], reference)
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
    wrong = prompt.reference[::-1]
    with RewardRunner("sorting", workers=2) as runner:
        runner.submit(7, prompt.tokens, [prompt.reference, wrong, prompt.reference], prompt.reference)
        outcome = collect(runner, 1)[7]
    assert outcome == (1.0, get_task("sorting").reward(prompt.tokens, wrong, prompt.reference), 1.0)


def test_a_function_of_a_file_gets_tuples_may_print_and_may_return_what_becomes_a_float(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:behave") as runner:
        assert score(runner, 7, 50) == (0.25, 0.5)


def test_a_group_without_answers_has_no_rewards(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:behave") as runner:
        assert score(runner) == ()


def test_a_reward_that_raises_fails_its_group_with_the_traceback_and_the_worker_goes_on(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:behave") as runner:
        outcome = failure(score(runner, 50, 1, 50))
        assert (outcome.reason, outcome.answer) == ("raised", 1)
        assert "RuntimeError: no reward for 11" in outcome.detail
        assert "my_rewards.py" in outcome.detail
        assert score(runner, 60) == (0.6,)


@pytest.mark.parametrize(
    ("kind", "reason", "detail"),
    [(3, "not_finite", "returned nan"), (4, "not_a_number", "'0.5', of type str"), (8, "not_a_number", "NoneType")],
)
def test_a_reward_that_is_no_finite_number_says_what_came(rewards_file: Path, kind: int, reason: str, detail: str) -> None:
    with RewardRunner(f"{rewards_file}:behave") as runner:
        outcome = failure(score(runner, kind))
    assert outcome.reason == reason
    assert detail in outcome.detail


def test_a_reward_that_never_returns_is_ended_in_time_and_only_its_own_group_fails(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:behave", workers=1, timeout_s=2.0) as runner:
        for key in range(6):
            runner.submit(key, [11], [[50], [2 if key == 2 else 60]], "")
        outcomes = collect(runner, 6)
    late = failure(outcomes.pop(2))
    assert (late.reason, late.answer) == ("timeout", 1)
    assert "2.0 s" in late.detail
    assert set(outcomes.values()) == {(0.5, 0.6)}


def test_the_time_limit_is_one_rewards_not_a_groups(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:behave", timeout_s=1.5) as runner:
        assert score(runner, *[10] * 6) == (0.1,) * 6


def test_rewards_that_came_while_nobody_polled_are_not_late(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:behave", timeout_s=1.5) as runner:
        runner.submit(0, [11], [[10]], "")
        assert runner.poll(0) == []
        time.sleep(2.0)
        assert collect(runner, 1) == {0: (0.1,)}


@pytest.mark.parametrize(("kind", "exit_code"), [(5, 3), (6, -signal.SIGSEGV)])
def test_a_worker_that_dies_is_replaced_and_the_groups_behind_it_are_computed(rewards_file: Path, kind: int, exit_code: int) -> None:
    with RewardRunner(f"{rewards_file}:behave", workers=1) as runner:
        for key in range(4):
            runner.submit(key, [11], [[kind if key == 0 else 50]], "")
        outcomes = collect(runner, 4)
    dead = failure(outcomes.pop(0))
    assert (dead.reason, dead.answer) == ("died", 0)
    assert f"exit code {exit_code}" in dead.detail
    assert set(outcomes.values()) == {(0.5,)}


def test_what_a_late_reward_has_started_ends_with_it(rewards_file: Path, tmp_path: Path) -> None:
    note = tmp_path / "processes"
    with RewardRunner(f"{rewards_file}:behave", timeout_s=1.0) as runner:
        assert failure(score(runner, 9, reference=str(note))).reason == "timeout"
        assert wait_until_dead([int(process) for process in note.read_text().split()])


def test_a_large_group_behind_a_busy_worker_blocks_nobody(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:behave", workers=1) as runner:
        runner.submit(0, [11], [[10]] * 7, "")
        runner.submit(1, [11], [[50, *range(200_000)]] * 8, "")
        started = time.monotonic()
        runner.poll(0)
        assert time.monotonic() - started < 1.0
        assert collect(runner, 2)[1] == (0.5,) * 8


def test_several_workers_share_the_groups(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:worker", workers=3) as runner:
        for key in range(12):
            runner.submit(key, [11], [[0]], "")
        processes = set(collect(runner, 12).values())
    assert len(processes) == 3


def test_workers_run_on_the_cores_they_are_given(rewards_file: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with RewardRunner(f"{rewards_file}:cores", cores=[core]) as runner:
        assert score(runner, 0) == (1.0,)


def test_groups_may_be_submitted_by_another_thread_while_this_one_waits(rewards_file: Path) -> None:
    with RewardRunner(f"{rewards_file}:behave") as runner:
        timer = threading.Timer(0.2, runner.submit, (5, [11], [[50]], ""))
        timer.start()
        started = time.monotonic()
        outcomes = runner.poll(30.0)
        timer.join()
    assert outcomes == [(5, (0.5,))]
    assert time.monotonic() - started < 10


def test_a_thousand_groups_of_a_trivial_reward_take_seconds_and_none_is_lost() -> None:
    prompt = get_task("sorting").prompt(3, seed=1)
    with RewardRunner("sorting", workers=1) as runner:
        for key in range(1_000):
            runner.submit(key, prompt.tokens, [prompt.reference] * 8, prompt.reference)
        assert set(collect(runner, 1_000, within_s=20).values()) == {(1.0,) * 8}


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("sortin", "did you mean sorting"),
        ("missing.py:behave", r"missing\.py is no Python file"),
        ("{file}:nothing", "has no function nothing"),
        ("{file}:not_callable", "has no function not_callable"),
        ("{broken}:behave", r"importing .*broken\.py failed:\n(.|\n)*ZeroDivisionError"),
        ("{ends}:behave", "not ready"),
    ],
)
def test_a_reward_that_cannot_be_loaded_is_told_at_the_start(rewards_file: Path, tmp_path: Path, reward: str, message: str) -> None:
    broken, ends = tmp_path / "broken.py", tmp_path / "ends.py"
    broken.write_text("1 / 0\n")
    ends.write_text("import os\nos._exit(1)\n")
    runner = RewardRunner(reward.format(file=rewards_file, broken=broken, ends=ends))
    with pytest.raises(ConfigError, match=message):
        runner.start()


def test_workers_die_with_their_parent_even_in_the_middle_of_a_reward(rewards_file: Path) -> None:
    parent = textwrap.dedent(f"""
        import sys, time
        from services.rewards import RewardRunner
        runner = RewardRunner({f"{rewards_file}:worker"!r}, workers=2)
        runner.start()
        for key in range(8):
            runner.submit(key, [11], [[0]], "")
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
    runner = RewardRunner(f"{rewards_file}:behave")
    runner.start()
    runner.submit(0, [11], [[2]], "")
    runner.poll(0.1)
    started = time.monotonic()
    runner.close()
    assert time.monotonic() - started < 5


def test_a_worker_needs_no_torch() -> None:
    probe = "import sys, services.reward_worker, services.rewards; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=False).returncode == 0
