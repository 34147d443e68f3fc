"""What a trainer sets up for direct transfers, and that it ends with the trainer."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bus.errors import BlobMissing
from bus.memory_log import MemoryBlobs, MemoryStore
from services.cli.checkup import weights_of
from services.config_file import make_config
from services.payloads import token_blob
from services.transfer import outlet
from services.transfer.addresses import own_address
from services.transfer.making import TrainersEnd, handing_out
from services.weights.store import WeightNotice

ON_GPUS = {"trainer": "cuda:0", "replica:s0": "cuda:1", "replica:h0": "cuda:0"}
NOTICE = WeightNotice(1, 0, "shm", "file:///dev/shm/somewhere", "", 0, 0.0)
WAITING = ["/bin/cat"]
END = TrainersEnd("redis://localhost", "here")

PARENT = """
import os, sys, time
from services.transfer.choice import Giver
from services.transfer.outlet import Outlet
from tests.services.transfer.factories import children_of
WAITING = ["/bin/cat"]
outlet = Outlet(Giver("here", ("cuda:0",), ("ipc",)), "127.0.0.1", b"", 1.0, WAITING)
outlet.start()
while not (pids := children_of("/bin/cat")):
    time.sleep(0.02)
print(*pids, flush=True)
time.sleep(600)
"""


def test_a_trainer_on_gpus_offers_what_its_replicas_can_take_and_keeps_the_token_out_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "COMMAND", WAITING)
    blobs = MemoryBlobs(MemoryStore("here"))
    config = make_config({"rollout": {"engine": "vllm"}, "weights": {"transport": "direct"}}, "here")
    with handing_out(config, ON_GPUS, END, lambda: blobs) as made:
        assert made is not None
        token = blobs.get(token_blob())
        direct = made.announce(NOTICE)
        assert direct is not None
        assert direct.devices == ("cuda:0",)
        assert set(direct.transports) <= {"nccl", "ipc"}
        assert "ipc" in direct.transports
        assert len(token) == 32
        assert token.hex() not in direct.model_dump_json()
    with pytest.raises(BlobMissing):
        blobs.get(token_blob())


def test_of_a_trainer_on_a_cluster_only_the_gpus_that_its_process_sees_hand_out() -> None:
    planned = ("cuda:8", "cuda:9")
    assert TrainersEnd("redis://localhost", "here").seen_of(planned) == planned
    assert TrainersEnd("redis://localhost", "here", "cuda:0,cuda:1").seen_of(planned) == planned
    assert TrainersEnd("redis://localhost", "here", "cuda:0").seen_of(planned) == ("cuda:8",)


@pytest.mark.parametrize("url", ["unix:///run/redis.sock", "redis://127.0.0.1:6379", "redis://localhost", "redis://no.such.host.invalid:1"])
def test_a_server_on_this_machine_alone_tells_no_address_for_others(url: str) -> None:
    assert own_address(url) == ""


@pytest.mark.parametrize("changed", [{"rollout": {"engine": "embedded"}}, {"weights": {"transport": "shm"}}])
def test_most_trainers_start_nothing(changed: dict[str, object]) -> None:
    config = make_config({"rollout": {"engine": "vllm"}, **changed}, "here")
    blobs = MemoryBlobs(MemoryStore("here"))
    with handing_out(config, ON_GPUS, END, lambda: blobs) as made:
        assert made is None
    on_cores = {"trainer": "1", "replica:s0": "0"}
    with handing_out(make_config({"rollout": {"engine": "vllm"}}, "here"), on_cores, END, lambda: blobs) as made:
        assert made is None


def test_the_process_ends_with_a_trainer_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        (pid,) = map(int, parent.stdout.readline().split())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_doctor_says_which_way_each_replicas_weights_take() -> None:
    config = make_config({"rollout": {"engine": "vllm"}, "weights": {"transport": "direct"}}, "here")
    (line,) = weights_of(config, ON_GPUS)
    assert line.found.startswith("s0: nccl; h0: the retained copy (nccl: both ends are on cuda:0")
    assert weights_of(config, {"trainer": "1", "replica:s0": "0"}) == []
