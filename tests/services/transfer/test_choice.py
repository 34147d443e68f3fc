"""Which way weights take: a table, and what is refused when a run is planned."""

from __future__ import annotations

import pytest

from bus.errors import ConfigError
from services.transfer.choice import Giver, Retained, Taker, Wanted, check_transport, choose, offered, parts_of, retained_by

BOTH = ("nccl", "ipc")
TRAINER = Giver("here", ("cuda:0", "cuda:1"), BOTH)


@pytest.mark.parametrize(
    ("wanted", "retained", "machine", "devices", "direct", "reason"),
    [
        ("direct", "shm", "here", "cuda:2", "nccl", ""),
        ("direct", "file", "here", "cuda:2", "nccl", ""),
        ("direct", "file", "there", "cuda:0", "nccl", ""),
        ("direct", "shm", "here", "cuda:1", "nccl", ""),
        ("direct", "shm", "here", "cuda:0", None, "NCCL connects different GPUs only"),
        ("direct", "shm", "here", "cuda:0", None, "from where one GPU gets it as quickly"),
        ("direct", "file", "here", "cuda:0", "ipc", "NCCL connects different GPUs only"),
        ("direct", "file", "here", "cuda:0,cuda:1", "ipc", "NCCL"),
        ("direct", "file", "here", "cuda:0,cuda:2", None, "cuda:2 of the replica is none of the trainer's"),
        ("direct", "shm", "here", "0,1", None, "the replica is on no GPU that is known by its number"),
        ("direct", "shm", "here", "", None, "the replica is on no GPU"),
        ("auto", "shm", "here", "cuda:2", None, ""),
        ("shm", "shm", "here", "cuda:2", None, ""),
        ("file", "file", "here", "cuda:2", None, ""),
        ("nccl", "shm", "here", "cuda:2", "nccl", ""),
        ("nccl", "file", "here", "cuda:0", None, "NCCL connects different GPUs only"),
        ("ipc", "shm", "here", "cuda:0", "ipc", ""),
        ("ipc", "shm", "here", "cuda:2", None, "cuda:2 of the replica is none of the trainer's"),
        ("ipc", "shm", "there", "cuda:0", None, "different machines (here, there)"),
    ],
)
def test_the_way_follows_from_what_is_wanted_and_what_both_ends_can_do(
    wanted: Wanted, retained: Retained, machine: str, devices: str, direct: str | None, reason: str
) -> None:
    choice = choose(wanted, retained, TRAINER, Taker(machine, parts_of(devices), BOTH))
    assert choice.direct == direct
    assert reason in "; ".join(choice.reasons)
    assert bool(choice.reasons) == bool(reason)


def test_containers_on_one_host_share_gpus_and_not_memory() -> None:
    one, other = "boot/1b/aa", "boot/2c/bb"
    trainer = Giver(one, ("cuda:0",), BOTH)
    assert choose("nccl", "file", trainer, Taker(other, ("cuda:0",), BOTH)).direct is None
    assert choose("nccl", "file", trainer, Taker(other, ("cuda:1",), BOTH)).direct == "nccl"
    assert choose("ipc", "file", trainer, Taker(other, ("cuda:0",), BOTH)).direct is None


def test_an_end_that_lacks_a_way_is_named() -> None:
    no_vllm = Giver("here", ("cuda:0",), ("ipc",))
    other = Taker("here", ("cuda:1",), BOTH)
    assert choose("nccl", "shm", no_vllm, other).reasons == ("nccl: the trainer does not have it",)
    assert choose("nccl", "shm", TRAINER, Taker("here", ("cuda:2",), ())).reasons == ("nccl: the replica does not have it",)
    assert choose("nccl", "shm", None, other).reasons == ("the trainer hands out nothing but the retained copy",)


@pytest.mark.parametrize(
    ("wanted", "engine", "devices", "message"),
    [
        ("nccl", "embedded", {"trainer": "cuda:0", "replica:s0": "cuda:1"}, "only vllm takes weights so"),
        ("nccl", "vllm", {"trainer": "1", "replica:s0": "0"}, "the trainer's device is 1: that needs GPUs"),
        ("ipc", "vllm", {}, "the trainer's device is not planned"),
        (
            "nccl",
            "vllm",
            {"trainer": "cuda:0", "replica:h0": "cuda:0"},
            "no replica of this run can take .replica:h0: both ends are on cuda:0",
        ),
        ("ipc", "vllm", {"trainer": "cuda:0", "replica:s0": "cuda:1"}, "replica:s0: cuda:1 of the replica is none of the trainer's"),
    ],
)
def test_a_way_that_nobody_can_take_is_refused_when_the_run_is_planned(
    wanted: Wanted, engine: str, devices: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_transport(wanted, engine, devices)


def test_a_way_that_one_replica_can_take_is_planned_and_offered() -> None:
    devices = {"trainer": "cuda:0", "replica:h0": "cuda:0", "replica:s0": "cuda:1", "rollouter": "0,1"}
    for wanted in ("nccl", "ipc"):
        check_transport(wanted, "vllm", devices)
        assert offered(wanted, "vllm", devices) == (wanted,)
    assert offered("direct", "vllm", devices) == BOTH
    assert offered("direct", "vllm", {"trainer": "cuda:0", "replica:h0": "cuda:0"}) == ("ipc",)


def test_most_runs_offer_nothing() -> None:
    on_gpus = {"trainer": "cuda:0", "replica:s0": "cuda:1"}
    assert offered("shm", "vllm", on_gpus) == offered("direct", "embedded", on_gpus) == ()
    assert offered("direct", "vllm", {"trainer": "1", "replica:s0": "0"}) == offered("direct", "vllm", {}) == ()


def test_the_copy_that_is_always_there_lies_where_all_can_reach_it() -> None:
    assert [retained_by(wanted, shared_folder=False) for wanted in ("auto", "shm", "file", "direct", "nccl", "ipc")] == [
        "auto", "shm", "file", "auto", "auto", "auto",
    ]  # fmt: skip
    assert retained_by("nccl", shared_folder=True) == "file"
    assert retained_by("auto", shared_folder=True) == "auto"
