"""A policy that was written for verl runs in a process of its own, and its mistakes are told."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bus.errors import ConfigError, PolicyFailed
from services.policy.making import make_policy
from services.policy.verl import start
from services.policy.verl_process import VerlProcess
from tests.policies.logs import Story, plan
from tests.services.policy.verl_files import (
    HEAD,
    RATIO_POLICIES,
    ROOT,
    join,
    mine,
    requests,
    small,
)

# --- what goes wrong


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HEAD + "x = 1 / 0\n", r"mine.py, line 4, in <module>: ZeroDivisionError: division by zero"),
        (HEAD + "class Mine(DynamicSchedulePolicyBase):\n    pass\n", "Can't instantiate abstract class Mine"),
        (HEAD + "class Other(DynamicSchedulePolicyBase):\n    pass\n", "there is no policy Mine in it; its classes: Other"),
        (small(more="    def __init__(self):\n        raise ValueError('no')"), r"line \d+, in __init__: ValueError: no"),
        (small(more="    def __init__(self, size):\n        pass"), "its constructor needs size: set it among the policy's settings"),
        (HEAD.replace("register_policy", "Nothing"), "has no Nothing: it has DynamicScheduleContext, DynamicSchedulePolicyBase"),
        (HEAD + "from verl.trainer import main_ppo\n", "line 4, in <module>"),
        (HEAD + "ray.init()\n", "the stand-in for ray has no init: it has get"),
        (HEAD + "import a_module_of_mine\n", "No module named 'a_module_of_mine'"),
        (HEAD + "import os\nos._exit(3)\n", r"mine.py: its process ended in running the file \(exit code 3\)"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_line_and_reason(source: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"policy mine.py:Mine: .*{words}"):
        make_policy("mine.py:Mine", {}, source)


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ({"should_activate_after_step": "\nreturn 1 / 0"}, "mine.py, line 11, in should_activate_after_step: ZeroDivisionError"),
        ({"deactivate_wait_samples": "return float('nan')"}, "deactivate_wait_samples returned nan: return a number of samples"),
        ({"deactivate_wait_samples": "return 'many'"}, "deactivate_wait_samples returned 'many'"),
        ({"request_rebalance": "self._rollouter.abort.remote()"}, "the rollouter takes rebalance_requests.remote"),
        ({"request_rebalance": "ray.get(5)"}, "ray.get was given 5"),
        ({"should_activate_after_step": "raise SystemExit"}, "SystemExit"),
    ],
)
def test_a_method_that_raises_is_told_with_its_line(bodies: dict[str, str], words: str) -> None:
    story = Story(plan())
    join(story, mine(small(**bodies)))
    with pytest.raises(PolicyFailed, match=words):
        _lend_at_once(story)


def _lend_at_once(story: Story) -> None:
    story.open_first_boundary()
    story.lend(answers=0)


@pytest.mark.parametrize(
    ("bodies", "question", "words"),
    [
        ({"should_activate_after_step": "while True: pass"}, ("activate", 0, False, {}), "should_activate_after_step took more than 0.3 s"),
        ({"update_after_step": "import time\ntime.sleep(9)"}, ("update", 0, 0.0), "update_after_step took more than 0.3 s"),
        ({"update_after_step": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"}, ("update", 0, 0.0), r"\(exit code -9\)"),
    ],
)
def test_a_method_that_takes_too_long_or_ends_the_process_is_named(
    bodies: dict[str, str], question: tuple[str, *tuple[object, ...]], words: str
) -> None:
    process = VerlProcess("mine", "mine.py", small(**bodies), "Mine", call_s=0.3)
    process.ask("make", {}, 4, 2, False)
    with pytest.raises(PolicyFailed, match=words):
        process.ask(*question)
    assert not _is_running(process.pid)
    with pytest.raises(PolicyFailed, match="its process ended"):
        process.ask("ratio")


def test_a_look_ahead_that_hangs_or_raises_costs_no_more_than_the_number() -> None:
    source = small(update_after_step="if ctx.last_activate_duration_s == 0.0:\n    raise RuntimeError")
    story = Story(plan())
    join(story, mine(source))
    story.open_first_boundary()
    story.lend(answers=0)
    assert [event.give_back_at for event in requests(story)] == [4, 5]


def test_what_it_prints_goes_to_the_log_of_the_service_and_not_between_the_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    printing = "print('one\\ntwo')\nimport os, sys\nos.write(1, b'raw')\nsys.stdout.flush()\nfor n in range(900): print(n)\nreturn True"
    story = Story(plan())
    join(story, mine(small(should_activate_after_step=printing)))
    story.open_first_boundary()
    told = [record.getMessage() for record in caplog.records]
    assert told[:2] == ["policy mine.py:Mine prints: one", "policy mine.py:Mine prints: two"]
    assert told[-1] == "policy mine.py:Mine prints: 702 more lines, which are left out"
    assert len(requests(story)) == 1


# --- its process


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def _gone(pid: int, within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while _is_running(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not _is_running(pid)


def test_its_process_ends_when_nobody_needs_the_policy_any_more() -> None:
    process = start("r.py:FixedRatio", RATIO_POLICIES)
    pid = process.pid
    assert _is_running(pid)
    del process
    gc.collect()
    assert _gone(pid)


def test_its_process_dies_with_its_parent() -> None:
    code = (
        "import sys, time; from services.policy.verl import start; "
        "kept = start('r.py:FixedRatio', sys.stdin.read()); print(kept.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(RATIO_POLICIES)
    parent.stdin.close()
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert _gone(pid)


def test_neither_verl_nor_ray_is_among_the_modules_of_the_service() -> None:
    make_policy("r.py:FixedRatio", {}, RATIO_POLICIES)
    assert not {"ray", "verl"} & set(sys.modules)
