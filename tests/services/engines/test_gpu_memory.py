"""What a replica holds of its GPUs, compared with what it says: no GPU is needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import pytest

from bus.errors import EngineError
from services.engines.gpu_driver import GpuDriver, Look
from services.engines.gpu_memory import GIB, GpuMemory, MemoryGuard, complaint_asleep, complaint_awake


def gpu(used: float, ours: float | None, name: str = "0", total: float = 80) -> GpuMemory:
    """In GiB."""
    return GpuMemory(name, int(total * GIB), int(used * GIB), None if ours is None else int(ours * GIB))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([gpu(60, 41)], [gpu(22, 3)], ""),
        ([gpu(60, 41)], [gpu(60, 41)], "still hold 41.0 GiB of GPU 0, where a sleeping replica may hold 6.0 GiB"),
        ([gpu(60, 41)], [gpu(26, 7)], "still hold 7.0 GiB"),
        ([], [gpu(60, 41)], "still hold 41.0 GiB"),
        # In a container only the sum is known.
        ([gpu(60, None)], [gpu(22, None)], ""),
        ([gpu(60, None)], [gpu(61, None)], "of GPU 0 61.0 GiB are in use, before it slept 60.0 GiB"),
        ([gpu(3, None)], [gpu(3, None)], ""),
        ([], [gpu(60, None)], ""),
        # All of several GPUs.
        ([gpu(50, 41), gpu(50, 41, "1")], [gpu(3, 2), gpu(50, 41, "1")], "hold 41.0 GiB of GPU 1"),
        ([], [], ""),
    ],
)
def test_a_replica_that_says_that_it_sleeps_must_have_given_its_memory_back(
    before: list[GpuMemory], after: list[GpuMemory], words: str
) -> None:
    found = complaint_asleep(before, after, share=0.5)
    assert words in found
    assert bool(words) == bool(found)


@pytest.mark.parametrize(
    ("asleep", "awake", "words"),
    [
        ([gpu(3, 2)], [gpu(43, 42)], ""),
        ([gpu(3, 2)], [gpu(56, 55)], "holds 55.0 GiB of GPU 0, of which it may have 40.0 GiB (share 0.5) and 4.0 GiB"),
        ([gpu(3, 2)], [gpu(3, 2)], "says that it is awake, and holds 2.0 GiB of GPU 0, no more than it did asleep"),
        ([gpu(3, None)], [gpu(3, None)], ""),
        ([], [gpu(43, 42)], ""),
    ],
)
def test_a_replica_that_says_that_it_is_awake_must_hold_its_memory_and_no_more(
    asleep: list[GpuMemory], awake: list[GpuMemory], words: str
) -> None:
    found = complaint_awake(asleep, awake, share=0.5)
    assert words in found
    assert bool(words) == bool(found)


def test_the_driver_may_take_a_moment_to_count_what_was_given_back() -> None:
    looks = iter([[gpu(60, 41)], [gpu(60, 41)], [gpu(40, 20)], [gpu(22, 2)]])
    slept: list[float] = []
    guard = MemoryGuard(0.5, lambda: next(looks), clock=count().__next__, pause=slept.append)
    guard.going_to_sleep()
    assert guard.asleep() == ""
    assert len(slept) == 2


def test_but_not_for_ever() -> None:
    guard = MemoryGuard(0.5, lambda: [gpu(60, 41)], clock=count().__next__, pause=lambda seconds: None)
    guard.going_to_sleep()
    assert "still hold 41.0 GiB" in guard.asleep()
    guard.waking()
    assert "no more than it did asleep" in guard.awake()


class DriverError(Exception):
    """As the library raises."""


@dataclass
class Amount:
    total: int
    used: int


@dataclass
class Process:
    pid: int
    usedGpuMemory: int | None  # noqa: N815  (the library's name)


@dataclass
class Driver:
    """As `pynvml` answers on a machine with such GPUs."""

    gpus: dict[str, tuple[Amount, list[Process] | None]]
    NVMLError: type[Exception] = DriverError

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:  # noqa: N802
        return self.nvmlDeviceGetHandleByUUID(str(index))

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:  # noqa: N802
        if uuid not in self.gpus:
            raise DriverError("Invalid Argument")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Amount:  # noqa: N802
        return self.gpus[str(handle)][0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> Sequence[Process]:  # noqa: N802
        processes = self.gpus[str(handle)][1]
        if processes is None:
            raise DriverError("Not Supported")
        return processes


def test_what_the_driver_says_is_counted_by_process_where_it_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    processes = [Process(11, 30), Process(12, 5), Process(99, 40)]
    driver = GpuDriver(Driver({"2": (Amount(100, 75), processes), "3": (Amount(100, 1), None)}), "cuda:0,cuda:1")
    assert driver.look([11, 12]) == [GpuMemory("2", 100, 75, 35), GpuMemory("3", 100, 1, None)]
    assert driver.look([7])[0].ours is None
    processes.append(Process(13, None))
    assert driver.look([11, 13])[0].ours is None


def test_gpus_can_be_named_by_their_uuids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa")
    assert GpuDriver(Driver({"GPU-aa": (Amount(100, 1), [])}), "cuda:0").look([]) == [GpuMemory("GPU-aa", 100, 1, None)]


def test_gpus_that_the_driver_does_not_know_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(EngineError, match="driver does not know the GPUs 4 of cuda:4: Invalid Argument"):
        GpuDriver(Driver({"0": (Amount(100, 1), [])}), "cuda:4")


def test_a_device_of_cores_has_no_such_memory() -> None:
    look = Look("0,1", lambda: [1])
    assert look() == ()
    guard = MemoryGuard(0.5, look)
    guard.going_to_sleep()
    assert guard.asleep() == guard.awake() == ""
