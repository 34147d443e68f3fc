"""One run with real processes whose policy is swapped, refused, stopped, killed while the devices are lent, promoted, and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import pytest

from bus.books import Books
from bus.embedded import folder_url
from bus.entry import Draft, Entry
from bus.errors import LogError, ServerError
from bus.events import (
    DeadlineMissed,
    Event,
    PolicyAttached,
    PolicyDetached,
    PolicyRequested,
    RunEnded,
    ServiceLost,
    StepDone,
    StopRequested,
    SwitchDone,
    SwitchRequested,
    SwitchStarted,
)
from bus.recording import Recording
from bus.redis_log import RedisLog
from replay.recorded import verify_recording
from replay.subjects import subjects
from services.launcher.folders import SERVER
from services.policy.asking import OPERATOR, Outcome, ask, wait_for
from tests.serving import QUIET
from tests.simulation.check import check_policies

PATIENCE_S = 90.0
"""A wait that fails the test when it takes this long; never reached by healthy processes."""
RUN = "swapped"
GIVE_BACK_AT = 9
CONFIG = """
model: {path: scripted}
data: {task: sorting, seed: 3}
rollout: {engine: scripted, n: 2, max_running_requests: 4}
scripted: {seconds_per_step: 0.05, tokens_per_second: 60, shortest_answer: 4, longest_answer: 24}
async_training: {ppo_mini_batch_size: 4, trigger_parameter_sync_step: 2, total_steps: 100000}
replicas: {standalone: 1, hybrid: 1}
policy: {name: static_fully_async}
deadlines: {verdict_s: 1}
supervisor: {first_delay_s: 2, candidate_s: 4}
devices: unpinned
"""
HEAD = "from policies.base import PolicyBase\nfrom policies.protocol import Verdict\n\n\nclass Own(PolicyBase):\n"
LENDS = f"""{HEAD}    def verdict(self, view):
        return Verdict("rollout", {GIVE_BACK_AT}, "always")

    def give_back_at(self, view):
        return {GIVE_BACK_AT}
"""
RAISES = f"{HEAD}    def verdict(self, view):\n        return Verdict('rollout', 1 // 0, 'never')\n"
HANGS = f"{HEAD}    def verdict(self, view):\n        while True:\n            pass\n"


class Live:
    """A run as its operator sees it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._position = 0
        command = [sys.executable, "-P", "-m", "swingshift", "run", *options]
        with (folder / "output").open("a") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=QUIET, cwd=Path(__file__).parent.parent)

    @cached_property
    def log(self) -> RedisLog:
        """The run's, once its server is there: one that was killed leaves its address behind."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up and self.process.poll() is None:
            url = folder_url(self.folder / RUN / SERVER)
            if url is not None:
                with suppress(LogError, ServerError):
                    return RedisLog.open(url, RUN)
            time.sleep(0.05)
        raise AssertionError((self.folder / "output").read_text()[-3000:])

    def until(self, holds: Callable[[Entry], bool], after: int | None = None) -> Entry:
        """The first entry for which this holds, of those not read yet (or after a position)."""
        self._position = self._position if after is None else after
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            for entry in self.log.read(self._position, 1, 200):
                self._position = entry.position
                if holds(entry):
                    return entry
        raise AssertionError(f"nothing came after entry {self._position}")

    def next(self, kind: type[Event], after: int | None = None) -> Entry:
        return self.until(lambda entry: isinstance(entry.event, kind), after)

    def ask(self, action: str, name: str = "", source: str = "", label: str = "") -> Outcome:
        request = PolicyRequested.model_validate({"action": action, "name": name, "source": source, "label": label})
        outcome = wait_for(self.log, ask(self.log, request), request, PATIENCE_S)
        assert outcome is not None
        return outcome

    def attach(self, action: str, name: str, source: str = "", label: str = "") -> Entry:
        outcome = self.ask(action, name, source, label)
        assert outcome.how == "attached", outcome.detail
        return outcome.entry

    def stop(self) -> None:
        self.log.append(OPERATOR, [Draft(StopRequested(reason="test"), derived=False, cause=0, at=time.time_ns())])
        assert self.process.wait(PATIENCE_S) == 0, (self.folder / "output").read_text()[-3000:]
        self.log.close()


def pid_of_policy(request: int) -> int:
    """The process of the active policy that a request, or the plan, chose."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            asked = command[command.index("--request") + 1] if "--request" in command else "0"
            if "services.entry" in command and "policy" in command and RUN in command and "--name" not in command and asked == str(request):
                return int(folder.name)
    raise AssertionError(f"there is no process of the policy that request {request} chose")


Start = Callable[..., Live]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `swingshift run` with these options; none of them outlives the test."""
    runs: list[Live] = []

    def begin(*options: str) -> Live:
        runs.append(Live(tmp_path, *options))
        return runs[-1]

    yield begin
    for each in runs:
        each.process.kill()
        each.process.wait()


def check_refusals(run: Live) -> None:
    """None of them changes anything."""
    for name, source, stage, why in (
        ("no_such_policy", "", "load", "there is no policy 'no_such_policy'"),
        ("own.py:Other", LENDS, "load", "has no class Other"),
        ("own.py:Own", RAISES, "answer", "line 7, in verdict"),
        ("own.py:Own", HANGS, "answer", "it was not ready within 4 s"),
    ):
        outcome = run.ask("swap", name, source)
        assert outcome.how == "refused"
        assert outcome.entry.event.stage == stage  # type: ignore[attr-defined]
        assert why in outcome.detail, outcome.detail


def check_stopped_policy(run: Live) -> None:
    """It hangs: the boundary's deadline passes, training goes on, it is killed and comes back."""
    attached = run.attach("swap", "fixed_ratio")
    request = attached.event.request  # type: ignore[attr-defined]
    run.next(StepDone)
    os.kill(pid_of_policy(request), signal.SIGSTOP)
    missed = run.until(lambda entry: isinstance(entry.event, DeadlineMissed) and entry.event.key.startswith("verdict:"))
    trained = run.next(StepDone)
    lost = run.next(ServiceLost)
    assert missed.position < trained.position < lost.position
    assert "it let a boundary's deadline pass" in str(lost.event)
    back = run.next(PolicyAttached)
    assert (back.event.name, back.event.request) == ("fixed_ratio", request)  # type: ignore[attr-defined]
    run.until(lambda entry: isinstance(entry.event, SwitchRequested) and entry.epoch == back.epoch)


def check_killed_while_lent(run: Live) -> None:
    """The devices go back at its last `give_back_at`, before it is back."""
    attached = run.attach("swap", "own.py:Own", LENDS)
    begun = run.until(lambda entry: isinstance(entry.event, SwitchStarted) and entry.event.give_back_at == GIVE_BACK_AT, attached.position)
    lent = run.next(SwitchDone, begun.position)
    os.kill(pid_of_policy(attached.event.request), signal.SIGKILL)  # type: ignore[attr-defined]
    returned = run.until(lambda entry: isinstance(entry.event, SwitchStarted) and entry.event.target == "train", lent.position)
    back = run.next(PolicyAttached, lent.position)
    assert returned.position < back.position
    assert returned.event.reason == "give_back"  # type: ignore[attr-defined]
    books = Books()
    for entry in run.log.read(0, returned.cause):
        books.apply(entry.event)
    assert len(books.ready) == GIVE_BACK_AT


def check_shadow_and_promotion(run: Live) -> None:
    run.attach("shadow", "default")
    run.until(lambda entry: entry.source == "policy:default" and entry.derived)
    promoted = run.attach("promote", "default", label="default")
    detached = run.next(PolicyDetached, promoted.position)
    assert (detached.source, detached.event.reason) == ("policy:default", "promoted")  # type: ignore[attr-defined]
    assert run.ask("detach", label="default").how == "refused"


def check_resumed(run: Live, start: Start) -> Live:
    """After the supervisor's death the newest active policy and the shadows come back, not the plan's."""
    shadow = run.attach("shadow", "fixed_ratio", label="mine")
    last = run.log.last_position()
    run.log.close()
    run.process.kill()
    run.process.wait()
    again = start("--resume", str(run.folder / RUN))
    attached: dict[str, Entry] = {}
    while len(attached) < 2:
        entry = again.next(PolicyAttached, max([last, *(each.position for each in attached.values())]))
        attached[entry.source] = entry
    assert attached["policy"].event.name == "default"  # type: ignore[attr-defined]
    assert attached["policy:mine"].event.request == shadow.event.request  # type: ignore[attr-defined]
    again.until(lambda entry: isinstance(entry.event, SwitchRequested) and entry.epoch == attached["policy"].epoch)
    return again


def test_the_policy_of_a_live_run_is_swapped_and_a_bad_one_changes_nothing(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    live = start(str(path), "--run", RUN, "--set", f"folder={tmp_path}")
    live.next(StepDone)
    check_refusals(live)
    assert len([entry for entry in live.log.read(0, 100_000) if isinstance(entry.event, PolicyAttached)]) == 1
    check_stopped_policy(live)
    check_killed_while_lent(live)
    check_shadow_and_promotion(live)
    again = check_resumed(live, start)
    again.stop()
    with Recording.open(live.folder / RUN) as recording:
        entries = list(recording.entries())
    check_policies(entries)
    assert any(isinstance(entry.event, RunEnded) and entry.event.reason == "stopped" for entry in entries)
    report = verify_recording(live.folder / RUN, subjects)
    assert report.passed, report.differences[0]
    assert not report.other_incarnations
