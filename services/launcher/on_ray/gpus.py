"""Whether the GPUs that a run was given are free: Ray counts what it gave away, and nothing of what others do on a node.

each reserved part ─▶ look(): nvidia-smi, for the GPUs that Ray gave it ─▶ GpuMemory ─▶ complaint()

The driver's library (services/engines/gpu_driver.py) is not asked: its bindings come with vLLM, which a node for the trainer, or for the
embedded engine, need not have. The tool comes with the driver, and that it takes a second does not matter once a run.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bus.sources import TRAINER
from services.config import RunConfig
from services.devices import memory_share, visible_gpus
from services.engines.gpu_memory import GIB, GpuMemory

LOOK_S = 20.0
TOLERATED_BYTES = GIB
"""On each GPU, of others: a display, a monitor's context."""


@dataclass(frozen=True, slots=True)
class Seen:
    """GPUs of one reserved part."""

    node: str
    gpus: tuple[GpuMemory, ...]
    """None where there is no NVIDIA driver, as on made-up GPUs."""


def look(_: str) -> str:
    """On a node, within a reserved part: memory of the GPUs that it was given, as JSON."""
    return json.dumps([platform.node(), [asdict(memory) for memory in memory_of(visible_gpus() or ())]])


def read(text: str) -> Seen:
    """What `look` said."""
    node, gpus = json.loads(text)
    return Seen(node, tuple(GpuMemory(**gpu) for gpu in gpus))


def memory_of(gpus: Sequence[str]) -> list[GpuMemory]:
    """What NVIDIA's tool says of these GPUs, by number or UUID; nothing where it is not there."""
    if not gpus:
        return []
    command = ["nvidia-smi", "--query-gpu=index,memory.total,memory.used", "--format=csv,noheader,nounits", f"--id={','.join(gpus)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parsed(done.stdout)


def parsed(text: str) -> list[GpuMemory]:
    """Lines such as `0, 81559, 4`: number, and MiB in all and in use; of GPUs in parts some say `[N/A]`."""
    rows = [line.split(", ") for line in text.splitlines() if line.strip()]
    return [GpuMemory(gpu, int(total) << 20, int(used) << 20, None) for gpu, total, used in rows if total.isdecimal() and used.isdecimal()]


def needed_share(services: Sequence[str], config: RunConfig) -> float:
    """Of each GPU of a part: the trainer has all of it in turns with the hybrid replicas, a standalone replica what is set."""
    return 1.0 if TRAINER in services else max((memory_share(config, service) for service in services), default=0.0)


def complaint(services: Sequence[str], found: Sequence[GpuMemory], node: str, config: RunConfig) -> str:
    """What is wrong with the GPUs of a part; empty: nothing that is known."""
    share = needed_share(services, config)
    for memory in found:
        if memory.used > max(TOLERATED_BYTES, (1 - share) * memory.total):
            return (
                f"GPU {memory.gpu} of node {node} is in use: others hold {memory.used / GIB:.1f} of its {memory.total / GIB:.1f} GiB, and "
                f"{share:g} of it is for {' and '.join(dict.fromkeys(services))}; "
                "end what runs there (nvidia-smi shows it), or take the GPU out of Ray's books (CUDA_VISIBLE_DEVICES at `ray start`)"
            )
    return ""
