"""Which service is on which device. On a GPU machine a device is a GPU (`cuda:0`), on a CPU machine it is a set of cores (`0,1`).

2 cores, one standalone and one hybrid replica:   core 0: s0        core 1: trainer, h0        both: everybody else
4 GPUs, one hybrid and three standalone ones:     cuda:0: trainer, h0        cuda:1: s0        cuda:2: s1        cuda:3: s2
the same with actor.ranks 2, two of each kind:    cuda:0: trainer, h0        cuda:1: trainer, h1        cuda:2: s0        cuda:3: s1

GPUs are numbered as this process sees them: with CUDA_VISIBLE_DEVICES, cuda:0 is the first of those. On a cluster they are numbered over
the whole run, and Ray says which node has which; cores are those of whichever node a service comes to, and unless they are named nobody is
bound to any.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bus.errors import ConfigError
from bus.sources import REPLICA_PREFIX, TRAINER
from services.config import RunConfig
from services.data.model_folder import attention_heads

CUDA = "cuda:"
VISIBLE = "CUDA_VISIBLE_DEVICES"
TENSOR_PARALLEL, PIPELINE_PARALLEL = PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size")
"""Settings of vLLM: how many parts each layer, and the layers, are in; one GPU has one part."""
DECIDERS = ("rollouter", "controller", "policy", "archiver")
"""Services that need no device, only some time of any core."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to be assigned."""

    cores: tuple[int, ...]
    """Of a cluster: those that each node has; none: it is not known which."""
    gpus: int = 0
    nodes: int = 0
    """Of a cluster; 0: it is a single machine."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the cluster of {_count(self.nodes, 'node')}" if self.nodes else "this machine"


def this_machine() -> Machine:
    """The cores and the GPUs (NVIDIA's) that this process may use."""
    gpus = Path("/proc/driver/nvidia/gpus")
    there = len(list(gpus.iterdir())) if gpus.is_dir() else 0
    visible = visible_gpus()
    return Machine(tuple(sorted(os.sched_getaffinity(0))), there if visible is None else min(there, len(visible)))


def visible_gpus() -> tuple[str, ...] | None:
    """What CUDA_VISIBLE_DEVICES names, numbers or UUIDs; None: it is not set, and all are visible."""
    named = os.environ.get(VISIBLE)
    return None if named is None else tuple(part.strip() for part in named.split(",") if part.strip() not in ("", "-1"))


def gpus_of(device: str) -> tuple[int, ...]:
    """The numbers of the GPUs of a device, none for one of cores."""
    return tuple(int(part.removeprefix(CUDA)) for part in device.split(",")) if is_cuda(device) else ()


def is_cuda(device: str) -> bool:
    """The device is made of GPUs."""
    return device.startswith(CUDA)


def cores_of(device: str) -> tuple[int, ...]:
    """The cores of a CPU device, none for the empty one."""
    return tuple(int(core) for core in device.split(",") if core)


def as_far_as_here(device: str, machine: Machine) -> str:
    """A device that was planned elsewhere, maybe on a cluster, for one process on this machine: the same, or as many GPUs as there are."""
    gpus = gpus_of(device)
    return device if all(gpu < machine.gpus for gpu in gpus) else _named(range(min(len(gpus), machine.gpus)))


def share_of(device: str, rank: int, ranks: int) -> str:
    """What one of several ranks has of a device: as many parts as the others, or with fewer parts than ranks, one that others have, too."""
    parts = device.split(",") if device else []
    if len(parts) < ranks:
        return parts[rank % len(parts)] if parts else ""
    return ",".join(parts[len(parts) * rank // ranks : len(parts) * (rank + 1) // ranks])


def assign_devices(config: RunConfig, machine: Machine) -> dict[str, str]:
    """Service -> device. Raises ConfigError for a device that is not there, or more than one holder can have."""
    on_gpus = config.actor.device == "cuda"
    if machine.nodes and on_gpus and config.devices == "unpinned":
        raise ConfigError("devices is unpinned and actor.device is cuda: Ray gives GPUs by their number only, leave devices at auto")
    if config.devices == "unpinned" or (config.devices == "auto" and machine.nodes and not on_gpus):
        return {}
    services = known_services(config)
    if config.devices == "auto":
        devices = _gpus(config, machine) if on_gpus else _cores(config, machine.cores)
        return {service: devices[service] for service in services if service in devices}
    for service in config.devices:
        if service not in services:
            raise ConfigError(f"devices.{service}: there is no such service in this run, there are {', '.join(services)}")
    _check_there(config.devices, machine)
    return dict(config.devices)


def known_services(config: RunConfig) -> tuple[str, ...]:
    """All services of a run by the names they have in the log."""
    replicas = (*config.replicas.standalone_names, *config.replicas.hybrid_names)
    return (TRAINER, *(REPLICA_PREFIX + name for name in replicas), *DECIDERS)


def _cores(config: RunConfig, cores: Sequence[int]) -> dict[str, str]:
    """Half of the cores for the standalone replicas, the others for the trainer, whose cores the hybrid replicas share out."""
    standalone, hybrid = config.replicas.standalone_names, config.replicas.hybrid_names
    lower = len(cores) // 2 if standalone and len(cores) > 1 else 0
    for_standalone, home = list(cores[:lower]) or list(cores), list(cores[lower:])
    devices = {TRAINER: home} | _share_out(standalone, for_standalone) | _share_out(hybrid, home)
    return {service: _text(held) for service, held in devices.items()} | dict.fromkeys(DECIDERS, _text(cores))


def _text(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))


def _share_out(names: Sequence[str], cores: Sequence[int]) -> dict[str, list[int]]:
    """Equal parts, the first ones one core larger; with fewer cores than replicas, several have the same one."""
    if len(names) > len(cores):
        return {REPLICA_PREFIX + name: [cores[index % len(cores)]] for index, name in enumerate(names)}
    return {REPLICA_PREFIX + name: list(cores[index :: len(names)]) for index, name in enumerate(names)}


def _gpus(config: RunConfig, machine: Machine) -> dict[str, str]:
    """The first GPUs are the trainer's, one a rank, which hybrid replicas share; each standalone replica has others of its own."""
    each, ranks = gpus_wanted(config), config.actor.ranks
    needed = ranks + each * config.replicas.standalone
    if needed > machine.gpus:
        apiece = f" of {each} GPUs each" if each > 1 else ""
        trainer = f"actor.ranks {ranks}" if ranks > 1 else "actor.device is cuda"
        raise ConfigError(
            f"{trainer} with {config.replicas.standalone} standalone replicas{apiece}: that takes {needed} GPUs, {machine.name} "
            f"has {machine.gpus}; lower replicas.standalone, or name the devices under `devices`"
        )
    # A hybrid one that wants more GPUs than there are ranks gets what there is, which is refused with its reason (`check_parallel`).
    shared = min(each, ranks)
    home = {
        REPLICA_PREFIX + name: _named((number * shared + gpu) % ranks for gpu in range(shared))
        for number, name in enumerate(config.replicas.hybrid_names)
    }
    others = {
        REPLICA_PREFIX + name: _named(range(ranks + number * each, ranks + (number + 1) * each))
        for number, name in enumerate(config.replicas.standalone_names)
    }
    return {TRAINER: _named(range(ranks))} | home | others


def _named(gpus: Iterable[int]) -> str:
    return ",".join(f"{CUDA}{gpu}" for gpu in gpus)


def _check_there(devices: Mapping[str, str], machine: Machine) -> None:
    for service, device in devices.items():
        parts = device.split(",")
        if is_cuda(device):
            missing = [part for part in parts if int(part.removeprefix(CUDA)) >= machine.gpus]
            there = f"{machine.gpus} GPUs"
        else:
            missing = [part for part in parts if int(part) not in machine.cores] if machine.cores or not machine.nodes else []
            there = f"{'on each node ' if machine.nodes else ''}the cores {', '.join(map(str, machine.cores))}"
        if missing:
            raise ConfigError(f"devices.{service} is {device}: {', '.join(missing)} is not there, {machine.name} has {there}")


def gpus_wanted(config: RunConfig) -> int:
    """GPUs that the engine's settings ask for in each replica; 1 if they leave it to the devices."""
    if config.rollout.engine != "vllm":
        return 1
    sizes = (config.rollout.engine_kwargs.get(name) for name in PARALLEL)
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


def check_parallel(config: RunConfig, devices: Mapping[str, str]) -> None:
    """Raises ConfigError for a replica with another number of GPUs than its engine would use."""
    kwargs = config.rollout.engine_kwargs
    for service, device in devices.items():
        gpus = gpus_of(device) if service.startswith(REPLICA_PREFIX) else ()
        if len(set(gpus)) < len(gpus):
            raise ConfigError(f"devices.{service} is {device}: it names a GPU twice")
        if len(gpus) > 1 and config.rollout.engine != "vllm":
            raise ConfigError(
                f"devices.{service} is {device}, {len(gpus)} GPUs: the {config.rollout.engine} engine runs on one; rollout.engine vllm "
                "shares a model out over several"
            )
        wanted = gpus_wanted(config)
        if gpus and TENSOR_PARALLEL in kwargs and wanted != len(gpus):
            raise ConfigError(
                f"devices.{service} is {device}, {_count(len(gpus), 'GPU')}, and rollout.engine_kwargs asks for {wanted} "
                f"({', '.join(f'{name} {kwargs[name]}' for name in PARALLEL if name in kwargs)}): name as many devices, or leave "
                "tensor_parallel_size out, which then follows from them"
            )
        if gpus and len(gpus) % wanted:
            raise ConfigError(
                f"devices.{service} is {device}, {_count(len(gpus), 'GPU')}, and rollout.engine_kwargs.{PIPELINE_PARALLEL} is {wanted}: "
                "the number of GPUs must be a multiple of it"
            )
        parts, heads = tensor_parallel_size(config, device) if gpus else 1, attention_heads(Path(config.model.path))
        if heads is not None and heads % parts:
            raise ConfigError(
                f"devices.{service} is {device}: the model's {heads} attention heads cannot be shared out over {parts} GPUs evenly; "
                "name fewer or more, or set rollout.engine_kwargs.pipeline_parallel_size"
            )


def tensor_parallel_size(config: RunConfig, device: str) -> int:
    """Processes that share the model of a replica on this device."""
    given = config.rollout.engine_kwargs.get(TENSOR_PARALLEL)
    return given if isinstance(given, int) else max(1, len(gpus_of(device)) // gpus_wanted(config))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def check_memory(config: RunConfig, devices: Mapping[str, str]) -> None:
    """Raises ConfigError when the holders of one GPU take more memory than it has."""
    shares: dict[str, list[tuple[str, float]]] = {}
    for service, device in devices.items():
        for part in device.split(",") if is_cuda(device) else ():
            shares.setdefault(part, []).append((service, memory_share(config, service)))
    for part, taken in shares.items():
        total = sum(share for _, share in taken)
        if total > 1 + 1e-9:
            names = " + ".join(f"{service} {share:g}" for service, share in taken)
            raise ConfigError(
                f"{part} would have {total:g} of its memory taken ({names}), which is over 1: lower rollout.gpu_memory_utilization, "
                "rollout.standalone_gpu_memory_utilization or trainer.gpu_memory_utilization"
            )


def memory_share(config: RunConfig, service: str) -> float:
    """Share of a GPU's memory that a service keeps or takes of each of its GPUs."""
    if service == TRAINER:
        return config.trainer.gpu_memory_utilization
    if service.removeprefix(REPLICA_PREFIX) in config.replicas.standalone_names:
        return config.rollout.standalone_gpu_memory_utilization
    return config.rollout.gpu_memory_utilization if service.startswith(REPLICA_PREFIX) else 0.0
