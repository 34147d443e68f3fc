"""Which machine this is: one whose shared memory and GPUs the processes with the same answer have in common.

Names of hosts say nothing of that: containers may all have the same, and two on one host may each have shared memory of their own.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
SHARED_MEMORY = Path("/dev/shm")


def machine_id(boot: Path = BOOT, shared_memory: Path = SHARED_MEMORY) -> str:
    """This start of this kernel, and this mount of shared memory: after a restart of either, what lay there is gone."""
    try:
        started = boot.read_text().strip()
    except OSError:
        started = socket.gethostname()
    try:
        # The number of a device is given out again; newer kernels have an id of each mount besides.
        return f"{started}/{os.stat(shared_memory).st_dev:x}/{os.statvfs(shared_memory).f_fsid:x}"
    except OSError:
        return started


def host_of(machine: str) -> str:
    """What the ids of all containers on one host have in common: these may share GPUs, if not their memory."""
    return machine.partition("/")[0]
