"""What a user, a disk or a server may get wrong: one clear message with the values and what to do, and nothing lost.

Servers that are absent, old, protected or may evict: tests/bus/test_connection.py. Entries: tests/bus/test_redis_log.py, too.
Settings: tests/services/test_config.py, tests/services/test_plan.py. Data, rewards and models: tests/services/data.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from bus.connection import Connection
from bus.entry import Draft, Entry
from bus.errors import CheckpointError, ConfigError, LogError, SwingshiftError, WeightsError
from bus.events import RunEnded, RunPlanned
from bus.keys import Keys
from bus.memory_log import MemoryStore
from bus.recorder import Recorder
from bus.recording import Recording
from bus.redis_log import APPEND, RedisLog
from services.config_file import make_config
from services.devices import Machine
from services.learner.checkpoint import write_checkpoint
from services.plan import plan_run
from services.weights.store import WeightStore
from tests.bus.factories import plan, steps
from tests.disks import SmallDisk, largest_file
from tests.serving import COMMAND, PATIENCE_S, QUIET, SCRIPTED, swingshift, write_config

MIB = 1 << 20
TWO_CORES = Machine((0, 1))


def refusal(sections: Mapping[str, object], machine: Machine = TWO_CORES) -> str:
    """What planning says about a configuration that cannot be followed."""
    with pytest.raises(ConfigError) as caught:
        plan_run(make_config({"async_training": {"total_steps": 1}, **sections}, "run.yaml"), "r", machine)
    return str(caught.value)


# --- settings --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"actor": {"learning_rate": 1e-5}}, "run.yaml: actor.learning_rate is no setting: did you mean actor.lr?"),
        ({"redis": {"memory_buget": 1}}, "run.yaml: redis.memory_buget is no setting: did you mean redis.memory_budget?"),
        ({"redis": {"memory_budget": "much"}}, "redis.memory_budget is 'much'"),
        ({"redis": {"memory_budget": "1KB"}}, "redis.memory_budget is 1000, it must be at least 65536"),
        ({"redis": {"memory_pause_at": 1.5}}, "redis.memory_pause_at is 1.5, it must be at most 1"),
        (
            {"redis": {"memory_pause_at": 0.5}},
            "redis.memory_resume_at is 0.6, which is over redis.memory_pause_at, 0.5: a paused run would resume at once",
        ),
        ({"rollout": {"max_running_requests": -1}}, "rollout.max_running_requests is -1, it must be at least 1"),
        ({"rollout": {"max_response_length": -5}}, "rollout.max_response_length is -5, it must be at least 1"),
        ({"async_training": {"total_steps": -3}}, "async_training.total_steps is -3, it must be at least 1"),
        ({"replicas": {"hybrid": -1}}, "replicas.hybrid is -1, it must be at least 0"),
        ({"rollout": {"gpu_memory_utilization": 1.2}}, "rollout.gpu_memory_utilization is 1.2, it must be at most 1"),
        ({"devices": {"trainer": [0, 7]}}, "devices.trainer is 0,7: 7 is not there, this machine has the cores 0, 1"),
        ({"devices": {"trainer": "cuda:0"}}, "devices.trainer is cuda:0: cuda:0 is not there, this machine has 0 GPUs"),
        ({"actor": {"device": "cuda"}}, "that takes 2 GPUs, this machine has 0; lower replicas.standalone"),
    ],
)
def test_a_setting_that_is_unknown_or_out_of_its_limits_is_told_with_its_value(sections: dict[str, object], words: str) -> None:
    assert words in refusal(sections)


@pytest.mark.parametrize(
    ("trainer", "hybrid", "hybrids", "total"),
    [(0.6, 0.5, 1, "1.1"), (0.1, 0.5, 2, "1.1"), (0.5, 0.5, 1, None), (1.0, 0.05, 1, "1.05")],
)
def test_c_30_the_trainers_share_and_that_of_each_hybrid_must_fit_on_its_device(
    trainer: float, hybrid: float, hybrids: int, total: str | None
) -> None:
    """C-30: two settings, checked against the device together with the trainer's share."""
    sections: dict[str, object] = {
        "actor": {"device": "cuda"},
        "trainer": {"gpu_memory_utilization": trainer},
        "rollout": {"gpu_memory_utilization": hybrid, "standalone_gpu_memory_utilization": 1.0},
        "replicas": {"standalone": 1, "hybrid": hybrids},
    }
    gpus = Machine((0,), gpus=2)
    if total is None:
        made = plan_run(make_config({"async_training": {"total_steps": 1}} | sections, "run.yaml"), "r", gpus)
        assert made.devices["replica:h0"] == made.devices["trainer"] != made.devices["replica:s0"]
        return
    words = refusal(sections, gpus)
    assert f"cuda:0 would have {total} of its memory taken (trainer {trainer:g} + replica:h0 {hybrid:g}" in words
    assert "lower rollout.gpu_memory_utilization" in words


def test_a_configuration_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00model")
    assert f"{path} is no text in UTF-8" in swingshift("run", str(path), "--dry-run", status=2)


def test_more_steps_than_a_number_in_the_log_can_hold_are_refused(tmp_path: Path) -> None:
    text = swingshift("run", str(write_config(tmp_path)), "--dry-run", "--set", "async_training.total_steps=99999999999999999999", status=2)
    assert "async_training.total_steps is 99999999999999999999, it must be at most" in text


# --- runs and their ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["{a}", "swingshift:a", "-a"])
def test_a_run_id_that_cannot_be_part_of_a_key_is_refused_before_anything_is_made(run: str, tmp_path: Path) -> None:
    text = swingshift("run", str(write_config(tmp_path)), f"--run={run}", status=2)
    assert f"{run!r} is no run id: use 1 to 64 of the characters A-Z a-z 0-9 . _ -" in text
    assert not (tmp_path / "runs").exists()


def test_a_run_id_that_is_in_use_is_refused_wherever_it_is_in_use(tmp_path: Path, redis_url: str, run: str) -> None:
    RedisLog.create(redis_url, plan(run), at=1).close()
    config = str(write_config(tmp_path))
    assert f"there is a run {run!r} on that server already" in swingshift("plan", config, "--run", run, "--redis", redis_url, status=2)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    text = swingshift("run", config, "--run", "mine", status=2)
    assert f"there is a run 'mine' in {tmp_path / 'runs'} already: choose another id with --run, or remove" in text


# --- entries ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "version", "body", "words"),
    [
        (
            "Nonsense",
            1,
            b"\x80",
            "entry 2 cannot be read: entry of unknown kind 'Nonsense': it was written by another version of swingshift",
        ),
        ("StepDone", 9, b"\x80", "entry 2 cannot be read: StepDone has schema 9, this version of swingshift reads up to 1: upgrade it"),
        ("StepDone", 1, b"\xc1", "entry 2 cannot be read: the body of a StepDone (schema 1, 1 bytes) cannot be read"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named_by_commands_and_services(
    kind: str, version: int, body: bytes, words: str, redis_url: str, run: str, tmp_path: Path
) -> None:
    with RedisLog.create(redis_url, plan_run(make_config({"async_training": {"total_steps": 1}}, "test"), run), at=1) as log:
        connection, keys = Connection(redis_url), Keys(run)
        entry = (kind, version, 0, 0, 1, 0, body)
        assert connection.run(APPEND, [keys.log, keys.meta], ["append", log.log_id, 0, "x", 0, "c", 1, MIB, 0, 1, *entry])[0] == b"ok"
        connection.close()
    text = swingshift("status", run, "--redis", redis_url, status=1)
    assert words in text
    assert "Traceback" not in text
    assert words in swingshift("serve", "policy", "--run", run, "--redis", redis_url, "--runs", str(tmp_path), status=1)


# --- disks ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 600 KiB, where one may be mounted."""
    disk = SmallDisk(tmp_path / "disk", "600k")
    try:
        yield disk
    finally:
        disk.close()


def log_of(count: int) -> list[Entry]:
    store = MemoryStore.create(plan("r"), at=1)
    store.write("trainer", 1, [Draft(draft.event, derived=False, cause=0, at=1) for draft in steps(1, count - 1)])
    return store.entries


def record(folder: Path) -> None:
    with Recorder.open(folder, "r", "id") as recorder:
        recorder.append(log_of(10_000))


def publish(folder: Path) -> None:
    WeightStore("r", "file", folder).publish({"w": torch.zeros(300_000)}, 3, 0, 1)


def checkpoint(folder: Path) -> None:
    write_checkpoint(folder / "checkpoint-e1-s4", {}, {"model": {"w": torch.zeros(300_000)}})


WRITERS = [
    pytest.param(publish, WeightsError, r"\(1200000 bytes\) cannot be written to \S*/weights-e1-v3-r0.safetensors: ", id="weights"),
    pytest.param(checkpoint, CheckpointError, r"cannot write checkpoint \S*/checkpoint-e1-s4: ", id="checkpoint"),
    pytest.param(record, LogError, r"entries 1 to 10000 cannot be written to \S*/events.sqlite: ", id="recording"),
]  # fmt: skip
Write = Callable[[Path], None]
TO_DO = r"; \d+ bytes are free there: make room, or set `folder` to a place on a larger disk$"


@pytest.mark.parametrize(("write", "error", "words"), WRITERS)
def test_what_cannot_be_written_is_told_with_its_path_the_room_there_is_and_what_to_do(
    tmp_path: Path, write: Write, error: type[SwingshiftError], words: str
) -> None:
    with largest_file(500_000), pytest.raises(error, match=words + ".*" + TO_DO):
        write(tmp_path)
    assert_nothing_half_written(tmp_path)
    write(tmp_path)


@pytest.mark.parametrize(("write", "error", "words"), WRITERS)
def test_a_disk_that_is_full_is_told_and_once_there_is_room_it_goes_on(
    small_disk: SmallDisk, write: Write, error: type[SwingshiftError], words: str
) -> None:
    with pytest.raises(error, match=words + r".*(No space left|disk is full).*" + TO_DO):
        write(small_disk.path)
    assert_nothing_half_written(small_disk.path)
    small_disk.enlarge("16m")
    write(small_disk.path)


def assert_nothing_half_written(folder: Path) -> None:
    """No file but the recording's, and that holds no entry."""
    assert [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("events.sqlite")] == []
    if (folder / "events.sqlite").exists():
        with Recording.open(folder) as recording:
            assert recording.last_position() == 0


LONG = SCRIPTED.replace("total_steps: 4", "total_steps: 100000") + "supervisor: {first_delay_s: 0.05, max_restarts: 2}\n"
RUN_WITH_A_LIMIT = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def test_a_run_whose_recording_cannot_be_written_stands_still_within_its_memory_says_why_and_its_log_is_whole(
    tmp_path: Path, redis_url: str, run: str
) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(f"{LONG}folder: {tmp_path / 'runs'}\nredis: {{memory_budget: 1MB}}\n".replace("max_restarts: 2", "grace_s: 3"))
    limited = [sys.executable, "-c", RUN_WITH_A_LIMIT, "200000", *COMMAND[1:]]
    command = [*limited, "run", str(config), "--run", run, "--redis", redis_url, "--no-verify"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=QUIET) as process:
        assert process.stdout is not None
        paused = next(line for line in process.stdout if "generation pauses: memory" in line)
        process.send_signal(signal.SIGINT)
        text = " ".join(process.communicate(timeout=PATIENCE_S)[0].split())
    assert f"cannot be written to {tmp_path / 'runs' / run}" in paused
    found = re.search(rf"run {run} ended: (stopped|memory)\b", text)  # the latter when much came between the pause and the interrupt
    assert found is not None, text
    assert f"make room, then `swingshift run --resume {tmp_path / 'runs' / run}` records it" in text
    assert process.returncode == 1, text
    assert "the disk takes nothing, trying on: waited_s=0" in (tmp_path / "runs" / run / "logs" / "archiver.log").read_text()
    assert f"run {run} has ended" in swingshift("run", "--resume", str(tmp_path / "runs" / run), "--redis", redis_url, status=2)
    check_whole(tmp_path / "runs" / run, found[1])


def test_a_run_on_a_full_disk_ends_by_rule_and_can_be_recorded_to_its_end_once_there_is_room(
    small_disk: SmallDisk, tmp_path: Path, redis_url: str, run: str
) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(f"{LONG}folder: {small_disk.path}\n")
    text = swingshift("run", str(config), "--run", run, "--redis", redis_url, status=1)
    assert f"run {run} ended: service_lost: " in text
    assert (
        f"({small_disk.path / run} is on a full disk: 0 bytes are free there: make room, or set `folder` to a place on a larger disk)"
        in text
    )
    small_disk.enlarge("64m")
    complete_and_verify(small_disk.path, run, redis_url, "service_lost")


def complete_and_verify(runs: Path, run: str, url: str, reason: str) -> None:
    """An archiver that is started later records what is still on the server, and that is whole."""
    swingshift("serve", "archiver", "--run", run, "--redis", url, "--runs", str(runs))
    check_whole(runs / run, reason)


def check_whole(folder: Path, reason: str) -> None:
    """The recording in `folder` is that of a run that ended for `reason`, from its first entry to its last."""
    assert "passed: the chain is whole" in swingshift("replay", "verify", str(folder))
    with Recording.open(folder) as recording:
        events = [entry.event for entry in recording.entries()]
    assert isinstance(events[0], RunPlanned)
    assert [event.reason for event in events if isinstance(event, RunEnded)] == [reason]
