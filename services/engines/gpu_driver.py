"""What NVIDIA's driver says of the memory of GPUs, by its library for that, which needs no CUDA context (such a context holds memory).

A replica on vLLM asks before and after each sleep and wake, several times a second and by process: nvidia-smi, which a cluster's nodes are
looked at with (services/launcher/on_ray/gpus.py), would take longer than a swing may.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from bus.errors import EngineError
from services.devices import gpus_of, is_cuda, visible_gpus
from services.engines.gpu_memory import GpuMemory


class _Amount(Protocol):
    total: int
    used: int


class _Process(Protocol):
    pid: int
    usedGpuMemory: int | None  # noqa: N815  (the library's name)


class Library(Protocol):
    """The part of `pynvml` that is needed; vLLM brings a copy."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: object) -> _Amount: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> Sequence[_Process]: ...  # noqa: N802


class GpuDriver:
    """The GPUs of one replica, whose process sees no others. Raises EngineError where the driver does not know them."""

    def __init__(self, library: Library, device: str) -> None:
        self._library = library
        named = visible_gpus() or tuple(str(gpu) for gpu in gpus_of(device))
        try:
            library.nvmlInit()
            self._handles = {name: self._handle(name) for name in named}
        except library.NVMLError as error:
            raise EngineError(f"NVIDIA's driver does not know the GPUs {', '.join(named)} of {device}: {error}") from error

    def look(self, pids: Collection[int]) -> list[GpuMemory]:
        """What is held of each GPU, and what of it by these processes."""
        try:
            return [self._memory(name, handle, pids) for name, handle in self._handles.items()]
        except self._library.NVMLError as error:
            raise EngineError(f"NVIDIA's driver does not say how much of a GPU's memory is in use: {error}") from error

    def _handle(self, name: str) -> object:
        return self._library.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else self._library.nvmlDeviceGetHandleByUUID(name)

    def _memory(self, name: str, handle: object, pids: Collection[int]) -> GpuMemory:
        amount = self._library.nvmlDeviceGetMemoryInfo(handle)
        return GpuMemory(name, amount.total, amount.used, self._ours(handle, pids))

    def _ours(self, handle: object, pids: Collection[int]) -> int | None:
        try:
            processes = self._library.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._library.NVMLError:  # not where a GPU is shared out in some ways
            return None
        found = [process.usedGpuMemory for process in processes if process.pid in pids]
        # A replica with a CUDA context always holds some: none at all means that the driver knows its processes by other numbers.
        return None if not found or None in found else sum(number or 0 for number in found)


class Look:
    """What a replica's processes hold of its device; nothing is said of one that is made of cores."""

    def __init__(self, device: str, pids: Callable[[], Collection[int]]) -> None:
        self._device = device
        self._pids = pids
        self._driver: GpuDriver | None = None

    def __call__(self) -> Sequence[GpuMemory]:
        """Raises EngineError. The driver's library is vLLM's copy of it, loaded when it is needed first."""
        if not is_cuda(self._device):
            return ()
        if self._driver is None:
            from vllm.third_party import pynvml

            self._driver = GpuDriver(pynvml, self._device)
        return self._driver.look(self._pids())
