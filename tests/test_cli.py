"""The command line, as a user calls it: real processes, exit statuses, what is printed, and that nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bus.events import RunPlanned
from bus.redis_log import RedisLog
from tests.serving import COMMAND, QUIET

SCRIPTED = """
model: {path: scripted}
rollout: {engine: scripted, n: 2}
scripted: {tokens_per_second: 2000}
async_training: {total_steps: 6, ppo_mini_batch_size: 4, trigger_parameter_sync_step: 2}
supervisor: {grace_s: 20, first_delay_s: 0.05}
"""
"""A run without a model: everything else is real."""
LONG = ["--set", "async_training.total_steps=100000", "--set", "scripted.seconds_per_step=0.2"]
START_S = 90


def swingshift(*arguments: str, status: int = 0, **environment: str) -> str:
    """Runs a command; returns all that it printed."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=240, check=False, env=QUIET | environment, start_new_session=True
    )
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of a scripted run whose folder lies in tmp_path/runs."""
    path = tmp_path / "quick.yaml"
    path.write_text(f"{SCRIPTED}folder: {tmp_path / 'runs'}\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of run `r1`."""
    return tmp_path / "runs" / "r1"


def processes_naming(text: str) -> list[int]:
    """Processes, other than this one, with a command line or a working folder that names `text`."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            try:
                if text in (path / "cmdline").read_text() and "Z" not in (path / "stat").read_text().rpartition(")")[2].split()[0]:
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def assert_nobody_left(folder: Path, within_s: float = 15.0) -> None:
    give_up = time.monotonic() + within_s
    while left := processes_naming(str(folder)):
        assert time.monotonic() < give_up, [command_line(pid) for pid in left]
        time.sleep(0.05)


class Running:
    """A `swingshift run` of run `r1` in the background."""

    def __init__(self, config: Path, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*COMMAND, "run", str(config), "--run", "r1", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=QUIET, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, kind: str, count: int = 1) -> None:
        """Until the recording has that many entries of a kind."""
        from bus.errors import SwingshiftError
        from bus.recording import Recording

        give_up = time.monotonic() + START_S
        while True:
            try:
                with Recording.open(self.folder) as recording:
                    if len(list(recording.rows(kinds=[kind]))) >= count:
                        return
            except SwingshiftError:
                pass
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < give_up, f"no {kind} within {START_S} s"
            time.sleep(0.1)

    def end(self) -> tuple[int, str]:
        """Waits for the end; returns exit status and output."""
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output


@pytest.fixture
def running(config: Path, folder: Path) -> Iterator[Running]:
    """A long run whose trainer has trained."""
    run = Running(config, folder, *LONG)
    with run.process:
        try:
            run.wait_for("StepDone")
            yield run
        finally:
            run.process.kill()


def kinds(folder: Path) -> list[str]:
    from bus.recording import Recording

    with Recording.open(folder) as recording:
        return [row.kind for row in recording.rows()]


def imported_by(arguments: Sequence[str]) -> set[str]:
    """Top-level modules that a command has imported when it ends."""
    code = (
        "import sys\nfrom swingshift import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=True, env=QUIET)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["serve", "--help"],
        ["policy", "--help"],
        ["policy", "check", "--help"],
        ["policy", "swap", "--help"],
        ["set", "--help"],
        ["replay", "--help"],
        [],
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    assert imported_by(arguments) & {"torch", "transformers", "redis", "numpy", "yaml", "ray", "bus", "policies"} == set()


def test_help_names_every_command() -> None:
    text = swingshift("--help")
    for command in ("run", "plan", "serve", "status", "tail", "stop", "set", "runs", "policy", "replay"):
        assert f" {command} " in text


def test_a_dry_run_shows_the_plan_and_makes_nothing(config: Path, tmp_path: Path) -> None:
    text = swingshift("run", str(config), "--dry-run", "--set", "async_training.staleness_threshold=0.25")
    assert "10 samples = floor(8 * (1 + 0.25))" in text
    assert "replica:h0" in text
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "missing.yaml"], "missing.yaml cannot be read"),
        (["run", "CONFIG", "--set", "rollout.nn=1"], "did you mean rollout.n?"),
        (["run", "CONFIG", "--set", "rollout.n=0"], "rollout.n is 0, it must be at least 1"),
        (["run", "CONFIG", "--run", "a/b"], "'a/b' is no run id"),
        (["run", "CONFIG", "--redis", "redis://127.0.0.1:1"], "127.0.0.1:1"),
        (["run", "CONFIG", "--redis", "nonsense"], "is no server URL"),
        (["run", "CONFIG", "--set", "model.path=/missing", "--dry-run", "--set", "rollout.engine=embedded"], "/missing"),
        (["plan", "CONFIG", "--run", "r1"], "Name it with --redis URL"),
        (["serve", "trainr", "--run", "r1"], "there is no service 'trainr'"),
        (["serve", "trainer", "--run", "r1"], "Name it with --redis URL"),
        (["serve", "trainer", "--run", "r1", "--redis", "redis://127.0.0.1:1", "--wait-s", "0"], "waited 0 s"),
        (["status", "nope"], "there is no run 'nope'"),
        (["tail", "nope"], "there is no run 'nope'"),
        (["stop", "nope"], "there is no run 'nope'"),
        (["policy", "check", "missing.json"], "missing.json cannot be read"),
        (["replay", "verify", "missing"], "missing is no recording"),
    ],
)
def test_a_users_mistake_is_one_message_and_status_2(config: Path, arguments: list[str], words: str) -> None:
    text = swingshift(*(str(config) if argument == "CONFIG" else argument for argument in arguments), status=2)
    assert words in " ".join(text.split())
    assert "Traceback" not in text


def test_policy_check_names_the_first_difference_with_status_1(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden" / "policy_decisions.json"
    assert "995 boundaries in 40 traces, all as recorded" in swingshift("policy", "check", str(golden))
    decisions = json.loads(golden.read_text())
    step = decisions["traces"][3]["steps"][2]
    step["expect"]["activate"] = not step["expect"]["activate"]
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(decisions))
    assert "trace 3" in swingshift("policy", "check", str(changed), status=1).splitlines()[0]


def test_a_run_runs_to_its_end_leaves_its_record_and_verifies(config: Path, folder: Path) -> None:
    text = swingshift("run", str(config), "--run", "r1")
    assert "passed: the chain is whole" in text
    assert text.strip().splitlines()[-1] == f"run r1 ended: completed; its folder is {folder}"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["samples_trained"] == 24
    assert kinds(folder).count("StepDone") == 6
    assert_nobody_left(folder)
    assert not Path("/dev/shm/swingshift-r1").exists()
    assert "there is a run 'r1'" in swingshift("run", str(config), "--run", "r1", status=2)
    assert "completed" in swingshift("status", str(folder))
    assert "r1" in swingshift("runs", "--runs", str(folder.parent))
    assert "RunEnded reason='completed'" in swingshift("tail", str(folder), "--kind", "RunEnded", "--follow")


def test_a_short_run_trains_a_real_model(tmp_path: Path) -> None:
    small = ["model.warm_start.steps=10", "rollout.n=4", "async_training.ppo_mini_batch_size=8", "async_training.total_steps=5"]
    settings = [f"folder={tmp_path / 'runs'}", *small, "async_training.trigger_parameter_sync_step=2"]
    demo = Path(__file__).parent.parent / "examples" / "demo.yaml"
    text = swingshift("run", str(demo), "--run", "real", *(word for setting in settings for word in ("--set", setting)))
    assert "passed: the chain is whole" in text
    summary = json.loads((tmp_path / "runs" / "real" / "summary.json").read_text())
    assert (summary["steps"], summary["samples_trained"], summary["version"]) == (5, 40, 3)
    assert (tmp_path / "runs" / "real" / "checkpoints").is_dir()


def test_a_run_in_one_process_does_the_same(config: Path, folder: Path) -> None:
    text = swingshift("run", str(config), "--run", "r1", "--in-process")
    assert "run r1 ended: completed" in text
    assert kinds(folder).count("StepDone") == 6


def test_a_plan_makes_a_run_on_a_shared_server_whose_name_is_taken_from_then_on(config: Path, redis_url: str) -> None:
    """Its services, started one by one, are seen in test_shared_redis.py and test_compose.py."""
    swingshift("plan", str(config), "--run", "r1", REDIS_URL=redis_url)
    with RedisLog.open(redis_url, "r1") as log:
        assert isinstance(log.read(0, 10)[0].event, RunPlanned)
    assert "there is a run 'r1' on that server already" in swingshift("run", str(config), "--run", "r1", "--redis", redis_url, status=2)


def test_ctrl_c_ends_a_run_in_order(running: Running) -> None:
    running.process.send_signal(signal.SIGINT)
    status, output = running.end()
    assert "run r1 ended: stopped" in output
    assert status == 0
    assert "passed: the chain is whole" in output
    assert "StopRequested" in kinds(running.folder)
    assert_nobody_left(running.folder)


def test_a_second_ctrl_c_ends_a_run_at_once(running: Running) -> None:
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    running.process.send_signal(signal.SIGINT)
    status, output = running.end()
    assert "interrupted twice" in output or "ended: stopped" in output
    assert status in (0, 1)
    assert_nobody_left(running.folder)


def test_a_run_whose_supervisor_is_killed_leaves_nobody_behind(running: Running) -> None:
    assert processes_naming(str(running.folder))
    running.process.kill()
    running.process.wait()
    assert_nobody_left(running.folder)


def test_the_operator_can_stop_a_run_and_look_at_it(running: Running) -> None:
    assert "running" in swingshift("status", str(running.folder))
    assert "StepDone" in swingshift("tail", str(running.folder), "--kind", "StepDone", "-n", "2")
    said = swingshift("set", str(running.folder), "staleness_threshold=1", "rollout.filter_groups=true")
    assert "async_training.staleness_threshold: 0.5 -> 1.0 from entry" in said
    running.wait_for("SampleDropped", 20)  # nothing is learnt from answers without a reward: all of them are dropped
    assert "filter_groups: true -> false" in swingshift("set", str(running.folder), "filter_groups=false")
    running.wait_for("StepDone", kinds(running.folder).count("StepDone") + 5)
    assert "staleness_threshold 1.0, filter_groups false" in swingshift("status", str(running.folder))
    assert "cannot change on a live run" in swingshift("set", str(running.folder), "rollout.n=3", status=2)
    assert "asked to stop" in swingshift("stop", str(running.folder))
    assert running.end()[0] == 0


def command_line(pid: int) -> str:
    """Empty for a process that has ended: a server's own, which writes its file anew, lives for a moment only."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
