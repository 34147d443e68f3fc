"""Which way weights take from the trainer to a replica: by what is configured, and by what both ends can do.

    shm, file   the retained copy, which is always there, and what everything falls back to
    nccl        retained copy ▸ the trainer's first GPU ▸ broadcast to the replica's GPUs
    ipc         retained copy ▸ a buffer on the GPU that both have, which the replica maps

Left the choice (`direct`) a replica takes nccl where its GPUs are others than the one that hands out. Where they are the same, the copy in
shared memory crosses the bus once on either way, so ipc is taken only if the retained copy lies in a folder. `auto` is the retained copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bus.errors import ConfigError
from services.machine import host_of

Wanted = Literal["auto", "shm", "file", "direct", "nccl", "ipc"]
Direct = Literal["nccl", "ipc"]
Retained = Literal["shm", "file"]
WAYS: Mapping[Wanted, tuple[Direct, ...]] = {
    "auto": (), "shm": (), "file": (), "direct": ("nccl", "ipc"), "nccl": ("nccl",), "ipc": ("ipc",),
}  # fmt: skip
"""What is thought of before the retained copy, in this order."""
CUDA = "cuda:"
REPLICA = "replica:"


@dataclass(frozen=True, slots=True)
class Giver:
    """The trainer's end: which machine it is on, those of its devices that it sees, as planned (the first one hands out), what it offers.

    What is planned are the numbers of the whole run: a number stands for one GPU, wherever it is.
    """

    machine: str
    devices: tuple[str, ...]
    transports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Taker:
    """A replica's end: its machine, its devices as planned, and what its engine takes."""

    machine: str
    devices: tuple[str, ...]
    transports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A direct way, or None for the retained copy, and why each way that was thought of before it was not taken."""

    direct: str | None
    reasons: tuple[str, ...] = ()


def choose(wanted: Wanted, retained: Retained, giver: Giver | None, taker: Taker) -> Choice:
    """The way of one replica to one publication. The same whoever asks."""
    if not WAYS[wanted]:
        return Choice(None)
    if giver is None:
        return Choice(None, ("the trainer hands out nothing but the retained copy",))
    reasons: list[str] = []
    for direct in WAYS[wanted]:
        reason = _lacks(direct, giver, taker) or (_no_gain(direct, retained) if wanted == "direct" else "")
        if not reason:
            return Choice(direct, tuple(reasons))
        reasons.append(f"{direct}: {reason}")
    return Choice(None, tuple(reasons))


def retained_by(wanted: Wanted, *, shared_folder: bool) -> Literal["auto", "shm", "file"]:
    """Where the copy lies that is always there. `shared_folder`: one was named, as replicas on other machines need it."""
    if wanted == "shm" or wanted == "file":
        return wanted
    return "file" if wanted != "auto" and shared_folder else "auto"


def check_transport(wanted: Wanted, engine: str, devices: Mapping[str, str]) -> None:
    """Raises ConfigError if a way was asked for that no replica of the run can take. `devices`: of each service, as planned."""
    if wanted not in ("nccl", "ipc"):
        return
    where = f"weights.transport is {wanted}"
    if engine != "vllm":
        raise ConfigError(f"{where} and rollout.engine is {engine}: only vllm takes weights so; set weights.transport to auto")
    trainer = devices.get("trainer", "")
    if not trainer.startswith(CUDA):
        raise ConfigError(
            f"{where} and the trainer's device is {trainer or 'not planned'}: that needs GPUs whose numbers are known; "
            "set actor.device to cuda and devices to auto, or weights.transport to auto"
        )
    giver = Giver("", parts_of(trainer), (wanted,))
    takers = {name: Taker("", parts_of(device), (wanted,)) for name, device in devices.items() if name.startswith(REPLICA)}
    lacks = {name: _lacks(wanted, giver, taker) for name, taker in takers.items()}
    if all(lacks.values()):
        each = "; ".join(f"{name}: {reason}" for name, reason in lacks.items())
        raise ConfigError(f"{where}, which no replica of this run can take ({each}): set weights.transport to auto")


def offered(wanted: Wanted, engine: str, devices: Mapping[str, str]) -> tuple[Direct, ...]:
    """What the trainer of a run is to offer: the ways that at least one replica may come to take, wherever the retained copy lies."""
    if engine != "vllm":
        return ()
    giver = Giver("", parts_of(devices.get("trainer", "")), ("nccl", "ipc"))
    takers = [Taker("", parts_of(device), ("nccl", "ipc")) for name, device in devices.items() if name.startswith(REPLICA)]
    return tuple(direct for direct in WAYS[wanted] if any(not _lacks(direct, giver, taker) for taker in takers))


def planned(wanted: Wanted, engine: str, devices: Mapping[str, str], retained: Retained) -> dict[str, Choice]:
    """Replica -> its way, in a run that offers any, as far as the plan tells: all on one machine."""
    giver = Giver("", parts_of(devices.get("trainer", "")), offered(wanted, engine, devices))
    if not giver.transports:
        return {}
    return {
        name.removeprefix(REPLICA): choose(wanted, retained, giver, Taker("", parts_of(device), ("nccl", "ipc")))
        for name, device in devices.items()
        if name.startswith(REPLICA)
    }


def parts_of(device: str) -> tuple[str, ...]:
    """`cuda:0,cuda:1` as its GPUs; nothing for one that is made of cores, or not planned."""
    return tuple(device.split(",")) if device.startswith(CUDA) else ()


def _lacks(direct: Direct, giver: Giver, taker: Taker) -> str:
    """Why these two cannot; empty if they can."""
    for whose, end in (("trainer", giver), ("replica", taker)):
        if not end.devices:
            return f"the {whose} is on no GPU that is known by its number"
        if direct not in end.transports:
            return f"the {whose} does not have it"
    if direct == "nccl":
        shared = host_of(giver.machine) == host_of(taker.machine) and giver.devices[0] in taker.devices
        return f"both ends are on {giver.devices[0]}, and NCCL connects different GPUs only" if shared else ""
    if giver.machine != taker.machine:
        return f"trainer and replica are on different machines ({giver.machine}, {taker.machine})"
    others = _missing(taker.devices, giver.devices)
    return f"{', '.join(others)} of the replica is none of the trainer's" if others else ""


def _missing(wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    return [part for part in wanted if part not in there]


def _no_gain(direct: Direct, retained: Retained) -> str:
    return "the retained copy is in shared memory, from where one GPU gets it as quickly" if direct == "ipc" and retained == "shm" else ""
