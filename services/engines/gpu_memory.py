"""Whether a replica holds as much of its GPUs' memory as it should: asleep next to nothing, awake no more than its share.

    vLLM says that it sleeps ─▶ what does the driver say? ─ too much, for seconds ─▶ the engine has failed: nothing goes to the trainer

The driver counts by process where it sees the same process ids as we do; in a container it may not. Then only what all processes together
hold is known, and all that can be asked is that some of it came back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

GIB = 1 << 30
OVERHEAD_BYTES = 4 * GIB
"""On each GPU, beside weights and cache: CUDA's context, its graphs and communication buffers, which no sleep gives back."""
KEPT_SHARE = 0.05
"""Of its share, what a sleeping replica may keep besides."""
SETTLE_S = 5.0
"""How long the driver may take to count what was given back."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of one GPU."""

    gpu: str
    total: int
    used: int
    """By whomever."""
    ours: int | None
    """By this replica's processes; None: the driver does not say."""


def complaint_asleep(before: Sequence[GpuMemory], after: Sequence[GpuMemory], share: float) -> str:
    """What is wrong with a replica that says that it sleeps; empty: nothing. `before` it did; empty: that is not known."""
    known = {memory.gpu: memory for memory in before}
    for memory in after:
        allowed = OVERHEAD_BYTES + KEPT_SHARE * share * memory.total
        if memory.ours is not None and memory.ours > allowed:
            return (
                f"vLLM says that it sleeps, and its processes still hold {_gib(memory.ours)} of GPU {memory.gpu}, where a sleeping replica "
                f"may hold {_gib(allowed)}: its memory cannot be given to the trainer"
            )
        earlier = known.get(memory.gpu)
        if memory.ours is None and earlier is not None and earlier.used > allowed and memory.used >= earlier.used:
            return (
                f"vLLM says that it sleeps, and of GPU {memory.gpu} {_gib(memory.used)} are in use, before it slept {_gib(earlier.used)}: "
                "nothing was given back that the trainer could have"
            )
    return ""


def complaint_awake(asleep: Sequence[GpuMemory], awake: Sequence[GpuMemory], share: float) -> str:
    """What is wrong with a replica that says that all of it is awake; empty: nothing. `asleep`: what was held before it woke."""
    known = {memory.gpu: memory for memory in asleep}
    for memory in awake:
        if memory.ours is None:
            continue
        allowed = share * memory.total + OVERHEAD_BYTES
        if memory.ours > allowed:
            return (
                f"vLLM holds {_gib(memory.ours)} of GPU {memory.gpu}, of which it may have {_gib(share * memory.total)} (share {share:g}) "
                f"and {_gib(OVERHEAD_BYTES)}: the trainer would not find room; lower gpu_memory_utilization or kv_cache_memory_bytes"
            )
        earlier = known.get(memory.gpu)
        if earlier is not None and earlier.ours is not None and memory.ours <= earlier.ours:
            return f"vLLM says that it is awake, and holds {_gib(memory.ours)} of GPU {memory.gpu}, no more than it did asleep"
    return ""


class MemoryGuard:
    """Looks before and after each sleep and wake. `share`: of each GPU's memory, this replica's. Answers are complaints; empty: none."""

    def __init__(
        self,
        share: float,
        look: Callable[[], Sequence[GpuMemory]],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._look = look
        self._clock = clock
        self._pause = pause
        self._before: Sequence[GpuMemory] = ()

    def going_to_sleep(self) -> None:
        """To be called before it does, while nobody else takes memory of these GPUs."""
        self._before = self._look()

    def asleep(self) -> str:
        """To be called when it says that it sleeps."""
        return self._settled(lambda now: complaint_asleep(self._before, now, self._share))

    def waking(self) -> None:
        """To be called before it wakes."""
        self._before = self._look()

    def awake(self) -> str:
        """To be called when it says that all of it is awake."""
        return self._settled(lambda now: complaint_awake(self._before, now, self._share))

    def _settled(self, complaint: Callable[[Sequence[GpuMemory]], str]) -> str:
        deadline = self._clock() + SETTLE_S
        while (words := complaint(self._look())) and self._clock() < deadline:
            self._pause(POLL_S)
        return words


def _gib(number: float) -> str:
    return f"{number / GIB:.1f} GiB"
