"""C-12 to C-17: a real run is killed with everything, goes on elsewhere from its folder alone, ends, and is gone back in.

run ─▶ its server is killed, and comes back ─▶ all is killed in mid-cycle ─▶ folder moved; server, shared memory, newest checkpoint lost
    ─▶ --resume ─▶ end ─▶ --from-step
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bus.embedded import EmbeddedServer, folder_url
from bus.entry import Entry
from bus.events import (
    BatchFormed,
    CheckpointSaved,
    GenerationRequested,
    RedoDiverged,
    ReplicaAwake,
    RunEnded,
    RunPlanned,
    SampleDropped,
    SampleReady,
    SampleStarted,
    ServiceLost,
    StepDone,
    WeightsApplied,
    WeightsPublished,
)
from bus.host import decide_all, rebuild
from bus.recording import Recording
from bus.redis_log import RedisLog
from services.cli.app import build_app
from services.launcher.folders import remove_shm_folder
from services.places import shm_folder
from services.trainer.core import TrainerCore
from swingshift import replay
from tests.cases.runs import of_kind, run_plan, small_plan
from tests.serving import COMMAND, PATIENCE_S, QUIET, children, kill_all, swingshift
from tests.test_end_to_end import follow, wait_for_log

RUN = "resumed"
STEPS = 36
KILLED_AFTER = 14
"""Steps; a cycle has 3, and a checkpoint is saved with each."""
GONE_BACK_TO = 30
CONFIG = """
model: {path: scripted}
rollout: {engine: scripted, n: 2, max_running_requests: 4}
scripted: {seconds_per_step: 0.12, tokens_per_second: 400, shortest_answer: 4, longest_answer: 24}
async_training: {ppo_mini_batch_size: 4, trigger_parameter_sync_step: 3, total_steps: 36}
policy: {name: default, params: {deactivate_ratio: 0.6}}
monitor: {trackers: []}
devices: unpinned
"""


@dataclass(frozen=True)
class Resumed:
    """What happened."""

    folder: Path
    """Where the run went on."""
    killed_at: int
    """Newest entry that was recorded then."""
    entries: list[Entry]
    back: list[Entry]
    """Of the run that begins with what this one had up to a step."""
    back_folder: Path
    said: str
    """What was said when it went on."""
    second: str
    """What a second supervisor was told while the run was active."""
    ended: str
    """What was said when the ended run was to be resumed."""


def start(config: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "swingshift", "run", str(config), "--run", RUN, "--no-verify", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=QUIET)


def wait_for(condition: object, process: subprocess.Popen[bytes]) -> None:
    assert callable(condition)
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < give_up
        time.sleep(0.02)


def steps(url: str) -> Iterator[int]:
    """Numbers of the steps that are done, as they come."""
    with RedisLog.open(url, RUN) as log:
        position = 0
        while True:
            for entry in log.read(position, 500, 1000):
                position = entry.position
                if isinstance(entry.event, StepDone):
                    yield entry.event.step


def server_pid(pid: int) -> int:
    """The embedded server below a supervisor."""
    return next(child for child in children(pid) if Path(f"/proc/{child}/comm").read_text().strip() in ("redis-server", "valkey-server"))


def refused(*arguments: str) -> str:
    """What `swingshift run` says, in this process, about what cannot be followed."""
    done = CliRunner().invoke(build_app(replay), ["run", *arguments], env={"REDIS_URL": ""})
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


def recorded(folder: Path) -> list[Entry]:
    with Recording.open(folder) as recording:
        return list(recording.entries())


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resumed]:
    root = tmp_path_factory.mktemp("resume")
    folder, moved = root / "runs" / RUN, root / "elsewhere" / "moved"
    (root / "config.yaml").write_text(CONFIG + f"folder: {root / 'runs'}\n")
    process = start(root / "config.yaml")
    try:
        wait_for(lambda: folder_url(folder / "server") is not None, process)
        url = folder_url(folder / "server")
        assert url is not None
        wait_for_log(url, RUN)
        progress = steps(url)
        next(progress)
        second = refused("--resume", str(folder))
        os.kill(server_pid(process.pid), signal.SIGKILL)
        next(step for step in progress if step == KILLED_AFTER)
    finally:
        kill_all(process)
    killed_at = recorded(folder)[-1].position
    shutil.rmtree(folder / "server")
    remove_shm_folder(RUN)
    moved.parent.mkdir()
    folder.rename(moved)
    newest = max((moved / "checkpoints").glob("checkpoint-e*"), key=lambda path: int(path.name.rpartition("-s")[2]))
    (newest / "model.safetensors").write_bytes(b"torn")
    said = swingshift("run", "--resume", str(moved), "--no-verify")
    ended = refused("--resume", str(moved))
    swingshift("run", "--resume", "moved", "--runs", str(moved.parent), "--from-step", str(GONE_BACK_TO), "--run", "back", "--no-verify")
    back = moved.parent / "back"
    yield Resumed(moved, killed_at, recorded(moved), recorded(back), back, said, second, ended)
    assert not shm_folder(RUN).exists()


def test_c_12_what_was_queued_and_in_flight_is_in_the_log_and_goes_on(resumed: Resumed) -> None:
    before, after = split(resumed)
    open_then = {event.sample for event in of_kind(before, SampleStarted)} - finished(before)
    assert open_then, "nothing was queued or in flight when the run was killed"
    trained = [sample for event in of_kind(after, BatchFormed) for sample in event.samples]
    dropped = [event.sample for event in of_kind(after, SampleDropped)]
    assert open_then <= {*trained, *dropped}
    assert not {event.sample for event in of_kind(after, SampleStarted)} & open_then


def test_c_12_no_prompt_is_skipped_or_trained_twice(resumed: Resumed) -> None:
    started = [event.sample for event in of_kind(resumed.entries, SampleStarted)]
    assert sorted(started) == list(range(len(started)))
    trained = Counter(sample for event in of_kind(resumed.entries, BatchFormed) for sample in event.samples)
    assert set(trained.values()) == {1}
    assert [event.step for event in of_kind(resumed.entries, StepDone)] == list(range(1, STEPS + 1))


def test_c_13_the_batch_after_a_restart_is_the_one_that_was_next() -> None:
    """Four are generated, two trained, and the trainer is killed after [0, 1]: the next batch is [2, 3]."""
    entries = run_plan(small_plan(trigger_parameter_sync_step=4, total_steps=4, standalone=("s0",), hybrid=()))
    second = next(entry for entry in entries if isinstance(entry.event, BatchFormed) and entry.event.step == 2)
    cause = next(entry for entry in entries[second.cause - 1 :] if entry.position == second.cause)
    core = TrainerCore()
    rebuild(core, [entry for entry in entries if entry.position <= cause.position])
    assert decide_all(core, cause.position)[0] == second.event
    ready = [event.sample for event in of_kind(entries[: cause.position], SampleReady)]
    assert isinstance(second.event, BatchFormed)
    assert list(second.event.samples) == ready[2:4]


def test_c_14_the_first_step_after_a_resume_is_the_next_one(resumed: Resumed) -> None:
    before, after = split(resumed)
    assert of_kind(after, StepDone)[0].step == of_kind(before, StepDone)[-1].step + 1


def test_c_15_outstanding_work_after_a_resume_stays_within_the_same_limit(resumed: Resumed) -> None:
    plan = of_kind(resumed.entries, RunPlanned)[0]
    limit = int(plan.cycle_samples * (1 + plan.staleness_threshold))
    outstanding, trained = set[int](), set[int]()
    for entry in resumed.entries:
        match entry.event:
            case SampleStarted():
                outstanding.add(entry.event.sample)
            case SampleDropped():
                outstanding.discard(entry.event.sample)
            case BatchFormed():
                trained |= set(entry.event.samples)
            case WeightsPublished():
                outstanding -= trained
            case _:
                pass
        assert len(outstanding) <= limit, entry


def test_c_16_current_weights_are_there_before_anything_is_generated(resumed: Resumed) -> None:
    """The newest version had no file and no whole checkpoint left: it was trained again, bit for bit, before the services started."""
    before, after = split(resumed)
    version = of_kind(before, WeightsPublished)[-1]
    put_back = resumed.folder / "weights" / Path(version.uri).name
    assert not put_back.exists(), "it is retired like any other version once a newer one is there"
    assert not [entry for entry in after if entry.event.kind == "ReplicaFailed"]
    assert not of_kind(after, RedoDiverged)
    serving = set[tuple[str, int]]()
    for entry in after:
        match entry.event:
            case WeightsApplied() | ReplicaAwake():
                assert entry.event.version >= version.version
                serving.add((entry.event.replica, entry.epoch))
            case GenerationRequested():
                assert (entry.event.replica, entry.event.epoch) in serving, entry
            case _:
                pass
    assert serving
    assert f"the published weights of version {version.version} are gone" in resumed.said


def test_c_17_going_back_begins_a_new_log_that_knows_nothing_of_later_steps(resumed: Resumed) -> None:
    plan = of_kind(resumed.back, RunPlanned)[0]
    assert (plan.run, plan.parent) == ("back", RUN)
    prefix = resumed.back[: plan.parent_position]
    assert [(entry.source, entry.at, entry.event) for entry in prefix[1:]] == [
        (entry.source, entry.at, entry.event) for entry in resumed.entries[1 : plan.parent_position]
    ]
    assert max(event.step for event in of_kind(prefix, StepDone)) == GONE_BACK_TO
    assert max(event.step for event in of_kind(prefix, BatchFormed)) == GONE_BACK_TO
    assert of_kind(resumed.back, CheckpointSaved)[0].step < GONE_BACK_TO
    assert [event.step for event in of_kind(resumed.back, StepDone)] == list(range(1, STEPS + 1))
    names = {path.name for path in (resumed.back_folder / "checkpoints").iterdir()}
    later = {event.step for event in of_kind(resumed.entries, CheckpointSaved) if event.step > GONE_BACK_TO}
    epochs = {entry.source: entry.epoch for entry in resumed.entries}
    assert not {f"checkpoint-e{epochs['trainer']}-s{step}" for step in later} & names


def test_c_17_the_run_that_was_gone_back_in_stays_as_it_is(resumed: Resumed) -> None:
    assert recorded(resumed.folder) == resumed.entries
    assert replay(["verify", str(resumed.folder)]) == 0
    assert replay(["verify", str(resumed.back_folder)]) == 0


def test_everybody_who_was_there_is_lost_in_the_log_and_the_run_is_verified(resumed: Resumed) -> None:
    _, after = split(resumed)
    lost = [event.service for event in of_kind(after, ServiceLost)]
    assert sorted(lost) == ["archiver", "controller", "monitor", "policy", "replica:h0", "replica:s0", "rollouter", "trainer"]
    assert [event.reason for event in of_kind(resumed.entries, RunEnded)] == ["completed"]


def test_a_second_supervisor_is_refused_and_an_ended_run_says_what_can_be_done(resumed: Resumed) -> None:
    assert "is active already" in resumed.second
    assert "has ended (completed)" in resumed.ended
    assert "steps with a checkpoint:" in resumed.ended
    assert f"{GONE_BACK_TO}," in resumed.ended


def test_a_step_without_a_checkpoint_and_a_setting_that_decides_are_refused(resumed: Resumed) -> None:
    said = refused("--resume", str(resumed.folder), "--from-step", "4")
    assert "step 4 of run resumed cannot be gone back to: it has no checkpoint; steps that can:" in said
    said = refused("--resume", str(resumed.folder), "--set", "rollout.n=4")
    assert "a run goes on as it was planned" in said


def split(resumed: Resumed) -> tuple[Sequence[Entry], Sequence[Entry]]:
    """The entries before the kill and after it."""
    lost = next(entry for entry in resumed.entries if isinstance(entry.event, ServiceLost) and entry.event.detail == "the run was resumed")
    return resumed.entries[: lost.position - 1], resumed.entries[lost.position - 1 :]


def finished(entries: Sequence[Entry]) -> set[int]:
    trained = {sample for event in of_kind(entries, BatchFormed) for sample in event.samples}
    return trained | {event.sample for event in of_kind(entries, SampleDropped)}


def test_a_run_whose_log_is_rolled_back_ends_and_says_how_it_goes_on(tmp_path: Path, run: str) -> None:
    """The server is killed, loses the end of its file, and comes back under the feet of a run."""
    (tmp_path / "config.yaml").write_text(CONFIG + f"folder: {tmp_path / 'runs'}\n")
    folder, said = tmp_path / "runs" / run, tmp_path / "said.txt"
    with EmbeddedServer(tmp_path / "server") as server:
        command = [*COMMAND, "run", str(tmp_path / "config.yaml"), "--run", run, "--no-verify", "--redis", server.url]
        with said.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=QUIET) as process:
            wait_for_log(server.url, run)
            next(entry for entry in follow(server.url, run) if isinstance(entry.event, StepDone) and entry.event.step == 4)
            server.close()
            (appended,) = (tmp_path / "server" / "appendonlydir").glob("*.incr.aof")
            os.truncate(appended, appended.stat().st_size // 2)
            server.start()
            assert process.wait(PATIENCE_S) == 1
        words = " ".join(said.read_text().split())
        assert re.search(r"ended: log_lost: run \S+: the log ends at \d+, this client knows it up to \d+: it was rolled back", words)
        assert f"go on with it: swingshift run --resume {folder}" in words
