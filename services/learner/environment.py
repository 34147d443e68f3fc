"""What the bits of a learner depend on besides seeds and settings: recorded in the plan, compared by whoever trains the same again."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from bus.errors import ConfigError
from bus.events import RunPlanned, Value
from services.devices import VISIBLE, cores_of, gpus_of, visible_gpus
from services.learner.config import LearnerConfig

MICRO_BATCH_RULE = "tokens-1"
"""Which rule of `services.learner.micro_batches` split the batches; changes with it."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read once, when the libraries are loaded."""
_FLAGS = ("avx2", "avx512f", "amx_tile")


def set_threads(device: str, threads: int | None = None) -> None:
    """What libraries read when they are loaded: how many threads to have, which GPUs there are. `device`: that of the service;
    `threads`: on one of cores, unset: as many as it has.

    Once a process: from then on it sees these GPUs alone, and the first of them is its `cuda:0`. What it starts inherits it.
    Raises ConfigError for GPUs that it does not see.
    """
    if gpus := gpus_of(device):
        visible = visible_gpus()
        if visible is not None and max(gpus) >= len(visible):
            raise ConfigError(
                f"{device} was planned and {VISIBLE} names {len(visible)} GPUs ({', '.join(visible)}): let it name as many as when the run "
                "was planned, or leave it unset"
            )
        os.environ[VISIBLE] = ",".join(str(gpu) if visible is None else visible[gpu] for gpu in gpus)
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the fastest first is another order in each process that sees others
    else:
        os.environ.update(dict.fromkeys(THREADS, str(threads or max(1, len(cores_of(device))))))


def environment(config: LearnerConfig) -> dict[str, Value]:
    """Of this machine, looked up without importing what it is about."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "torch": metadata.version("torch"),
        "transformers": metadata.version("transformers"),
        "backend": config.device,
        "threads": config.num_threads,
        "layout": config.layout,
        "attention": config.attention,
        "micro_batch_rule": MICRO_BATCH_RULE,
    }


def differences(plan: RunPlanned, config: LearnerConfig) -> dict[str, tuple[Value, Value]]:
    """What differs here from where the run was planned: name -> (recorded, here)."""
    return {
        name: (plan.environment[name], here)
        for name, here in environment(config).items()
        if name in plan.environment and plan.environment[name] != here
    }


def _cpu() -> str:
    """The processor's model, and those of its instructions that kernels are chosen by: other ones sum in another order."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())
    there = told.get("flags", "").split()
    return " ".join([told.get("model name") or platform.processor() or platform.machine(), *(flag for flag in _FLAGS if flag in there)])
