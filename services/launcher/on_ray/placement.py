"""Where the services of a run may sit on a cluster, worked out without it: what is reserved together, and what each service takes of that.

plan, settings, nodes ─place─▶ Placement: bundles (a placement group), and a seat for each service, in a bundle or outside of them

2 ranks, h0 and h1 on a GPU each, s0 on two:
    bundle 0: 1 GPU   rank 0 0.1, h0 0.5      bundle 1: 1 GPU   rank 1 0.1, h1 0.5      bundle 2: 2 GPUs   s0 2      outside: controller, …
the same with one h0 on both ranks' GPUs:
    bundle 0: 2 GPUs, held   rank 0 on the first, rank 1 on the second, h0 on both      bundle 1: 2 GPUs   s0 2      outside: controller, …

What shares a GPU is in one bundle, for a bundle is on one node. Ray gives fractions of a GPU, but with several GPUs in a bundle nobody can
ask for a fraction of a certain one. So where several services share several GPUs the bundle is *held*: one small actor takes its GPUs, all
of them, and tells their ids; the services take none of Ray and are told which of these ids are theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bus.errors import ConfigError
from bus.events import RunPlanned
from bus.sources import REPLICA_PREFIX, TRAINER
from services.config import RunConfig
from services.devices import CUDA, DECIDERS, gpus_of, memory_share, share_of

GPU, CPU = "GPU", "CPU"
NODE_ID = "ray.io/node-id"
"""Ray's own label of each node."""
_UNITS = 10_000
"""Ray counts in these parts of a resource."""
_NODES_TOLD = 4


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster that is alive."""

    id: str
    """Ray's, in hexadecimal digits."""
    name: str
    """What people know it by."""
    total: Mapping[str, float]
    """Resource -> how much of it there is."""
    free: Mapping[str, float]
    """What of that nobody has reserved."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Service -> why it cannot run here: what is missing, and what to do about it."""


def selector_of(barred: Sequence[str]) -> dict[str, str]:
    """The same as Ray is asked for it: any node but these."""
    return {NODE_ID: f"!in({','.join(barred)})"} if barred else {}


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources of one node that are reserved together."""

    resources: Mapping[str, float]
    barred: tuple[str, ...]
    """Ids of nodes that it may not be on, for they lack something."""
    services: tuple[str, ...]
    """Who sits in it, by the names they have in the log; the trainer once for each of its ranks."""
    held: bool = False
    """One actor takes its GPUs and tells their ids to those who sit here."""

    @property
    def selector(self) -> dict[str, str]:
        """Labels that its node must have."""
        return selector_of(self.barred)


@dataclass(frozen=True, slots=True)
class Seat:
    """What one service, or one rank of the trainer, takes."""

    bundle: int | None
    """None: it is in none, and may go wherever there is a node."""
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    """As Ray counts them; 0 in a held bundle."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom ones."""
    barred: tuple[str, ...] = ()
    """Ids of nodes that it may not be on; none in a bundle, which has them."""
    held: tuple[int, ...] = ()
    """In a held bundle: which of its GPUs, counted from 0 in the order in which their holder tells them."""

    @property
    def selector(self) -> dict[str, str]:
        """Labels that its node must have."""
        return selector_of(self.barred)

    @property
    def device(self) -> str:
        """Its GPUs by the names that they have where no others are seen; empty: none."""
        return ",".join(f"{CUDA}{number}" for number in range(len(self.held) or math.ceil(self.num_gpus)))


@dataclass(frozen=True, slots=True)
class Placement:
    """Of all services of a run."""

    bundles: tuple[Bundle, ...]
    strategy: str
    """PACK, SPREAD, STRICT_PACK or STRICT_SPREAD."""
    seats: Mapping[str, Seat]
    """Service -> its seat; the trainer's is that of its rank 0."""
    ranks: tuple[Seat, ...]
    """Those of the trainer's ranks."""


@dataclass(frozen=True, slots=True)
class _Occupant:
    """Who must be in some bundle; those with a place in common are in the same one."""

    name: str
    """The service's, or `rank N`."""
    service: str
    places: tuple[str, ...]
    """GPUs by number, and where there are none, what stands for a device."""
    gpus: tuple[int, ...]
    share: float
    cpus: float
    resources: Mapping[str, float]


def place(plan: RunPlanned, config: RunConfig, nodes: Sequence[Node]) -> Placement:
    """Raises ConfigError for a service that no node has everything for, and for settings about services that there are not."""
    replicas = tuple(REPLICA_PREFIX + name for name in plan.standalone + plan.hybrid)
    _check_named(config, (TRAINER, *replicas, *DECIDERS))
    ranks = [_rank(plan, config, number) for number in range(config.actor.ranks)]
    holders = [service for service in (*replicas, *DECIDERS) if service in replicas or gpus_of(plan.devices.get(service, ""))]
    islands = _islands([*ranks, *(_holder(plan, config, service, ranks) for service in holders)])
    bundles = tuple(_bundle(island, nodes) for island in islands)
    taken = {occupant.name: seat for number, island in enumerate(islands) for occupant, seat in _seats(number, island)}
    of_ranks = tuple(taken[rank.name] for rank in ranks)
    outside = {service: _outside(config, service, nodes) for service in DECIDERS if service not in holders}
    seats = {TRAINER: of_ranks[0], **{service: taken[service] for service in holders}, **outside}
    return Placement(bundles, config.cluster.strategy.upper(), seats, of_ranks)


def _check_named(config: RunConfig, services: Sequence[str]) -> None:
    for service in config.cluster.resources:
        if service not in services:
            raise ConfigError(f"cluster.resources.{service}: there is no such service in this run, there are {', '.join(services)}")
        for name in (CPU, GPU):
            if name in config.cluster.resources[service]:
                instead = "cluster.cpus" if name == CPU else "devices"
                raise ConfigError(f"cluster.resources.{service}.{name}: that one follows from {instead}; name custom resources here")


def _rank(plan: RunPlanned, config: RunConfig, number: int) -> _Occupant:
    ranks = config.actor.ranks
    gpus = gpus_of(share_of(plan.devices.get(TRAINER, ""), number, ranks))
    name, custom = f"rank {number}", config.cluster.resources.get(TRAINER, {})
    return _Occupant(name, TRAINER, _places(gpus) or (name,), gpus, memory_share(config, TRAINER), config.cluster.cpus.rank, custom)


def _holder(plan: RunPlanned, config: RunConfig, service: str, ranks: Sequence[_Occupant]) -> _Occupant:
    """A replica, or another service that was given a GPU."""
    gpus, name, cpus = gpus_of(plan.devices.get(service, "")), service.removeprefix(REPLICA_PREFIX), config.cluster.cpus
    is_hybrid = name in plan.hybrid
    home = ranks[plan.hybrid.index(name) % len(ranks)].places if is_hybrid else (service,)
    counted = 0.0 if is_hybrid else cpus.replica if service.startswith(REPLICA_PREFIX) else cpus.other
    custom = config.cluster.resources.get(service, {})
    return _Occupant(service, service, _places(gpus) or home, gpus, memory_share(config, service), counted, custom)


def _places(gpus: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{CUDA}{gpu}" for gpu in gpus)


def _islands(occupants: Sequence[_Occupant]) -> list[list[_Occupant]]:
    """Those that have places in common, directly or by others, together; in the order of the first of each."""
    islands: dict[int, list[int]] = {}
    island_of: dict[str, int] = {}
    for number, occupant in enumerate(occupants):
        found = sorted({island_of[place] for place in occupant.places if place in island_of})
        into = found[0] if found else number
        for other in found[1:]:
            moved = islands.pop(other)
            islands[into] += moved
            island_of.update((place, into) for member in moved for place in occupants[member].places)
        islands.setdefault(into, []).append(number)
        island_of.update(dict.fromkeys(occupant.places, into))
    return [[occupants[member] for member in sorted(members)] for members in islands.values()]


def _gpus_of_island(island: Sequence[_Occupant]) -> tuple[int, ...]:
    return tuple(sorted({gpu for occupant in island for gpu in occupant.gpus}))


def _is_held(island: Sequence[_Occupant]) -> bool:
    return len(_gpus_of_island(island)) > 1 and sum(1 for occupant in island if occupant.gpus) > 1


def _bundle(island: Sequence[_Occupant], nodes: Sequence[Node]) -> Bundle:
    services = tuple(occupant.service for occupant in island)
    resources: dict[str, float] = {GPU: len(_gpus_of_island(island)), CPU: math.fsum(occupant.cpus for occupant in island)}
    for occupant in island:
        for name, amount in occupant.resources.items():
            resources[name] = resources.get(name, 0.0) + amount
    return Bundle({name: amount for name, amount in resources.items() if amount}, _barred(services, nodes), services, _is_held(island))


def _seats(number: int, island: Sequence[_Occupant]) -> list[tuple[_Occupant, Seat]]:
    gpus = _gpus_of_island(island)
    if _is_held(island):
        return [
            (occupant, Seat(number, occupant.cpus, 0.0, occupant.resources, held=tuple(gpus.index(gpu) for gpu in occupant.gpus)))
            for occupant in island
        ]
    sharing = [occupant for occupant in island if occupant.gpus]
    taken = iter(fractions([occupant.share for occupant in sharing]) if sharing[1:] else [float(len(gpus))])
    return [(occupant, Seat(number, occupant.cpus, next(taken) if occupant.gpus else 0.0, occupant.resources)) for occupant in island]


def fractions(shares: Sequence[float]) -> list[float]:
    """Shares of one GPU as Ray counts them: each above 0, for nobody sees a GPU of which it has nothing, and together no more than 1."""
    units = [max(1, math.floor(share * _UNITS + 1e-6)) for share in shares]
    units[units.index(max(units))] -= max(0, sum(units) - _UNITS)
    return [unit / _UNITS for unit in units]


def _outside(config: RunConfig, service: str, nodes: Sequence[Node]) -> Seat:
    custom = config.cluster.resources.get(service, {})
    return Seat(None, config.cluster.cpus.other, resources=custom, barred=_barred((service,), nodes))


def _barred(services: Sequence[str], nodes: Sequence[Node]) -> tuple[str, ...]:
    """Nodes that lack something that one of these needs. Raises ConfigError when there is no other."""
    names = tuple(dict.fromkeys(services))
    unfit = {node.id: next(node.lacks[name] for name in names if name in node.lacks) for node in nodes if node.lacks.keys() & set(names)}
    if nodes and len(unfit) == len(nodes):
        told = [f"{node.name}: {unfit[node.id]}" for node in nodes[:_NODES_TOLD]]
        more = [f"and {len(nodes) - _NODES_TOLD} more nodes"] if len(nodes) > _NODES_TOLD else []
        need = f"what {' and '.join(names)} {'need, which must be on one node' if names[1:] else 'needs'}"
        raise ConfigError(f"no node has {need}: {'; '.join(told + more)}")
    return tuple(unfit)
