"""Whether a cluster has room for a placement, and what is missing where it has none, by resource and in words.

in all: needed > there, or > free      ─▶ "needs 4 GPU (trainer 2, replica:s0 1, replica:s1 1); the cluster has 3, 1 of them in use …"
on one node: no node has all of a part ─▶ "replica:s0 needs 4 GPU on one node; …"
together: parts do not go side by side ─▶ "… in all, but not on as few nodes …"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from services.launcher.on_ray.placement import CPU, GPU, Node, Placement, Seat

Amounts = Mapping[str, float]
_NAMES_TOLD = 6
_NODES_TOLD = 4
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Missing:
    """What a cluster lacks."""

    words: str
    for_good: bool
    """Not even an idle cluster of these nodes would have it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What must be on one node."""

    name: str
    needs: Amounts
    nodes: tuple[Node, ...]
    """Where it may be."""


def missing(placement: Placement, nodes: Sequence[Node]) -> Missing | None:
    """The first thing that is; None: there is room. Packs the parts one by one, which may miss a way that there is, never the reverse."""
    parts = _parts(placement, nodes)
    for for_good, amounts in ((True, _total), (False, _free)):
        words = _in_all(parts, nodes, for_good) or _on_one_node(parts, amounts, for_good) or _spread(placement, parts, nodes)
        if words:
            return Missing(words, for_good)
    return _side_by_side(placement, parts, nodes)


def amounts_in_words(amounts: Amounts) -> str:
    """Such as `4 GPU and 8 CPU`."""
    told = [f"{amounts[name]:g} {name}" for name in (GPU, CPU, *(name for name in amounts if name not in (GPU, CPU))) if amounts.get(name)]
    return " and ".join([", ".join(told[:-1]), told[-1]] if told[1:] else told) or "nothing"


def _total(node: Node) -> Amounts:
    return node.total


def _free(node: Node) -> Amounts:
    return node.free


def _parts(placement: Placement, nodes: Sequence[Node]) -> list[_Part]:
    bundles = placement.bundles
    if placement.strategy == "STRICT_PACK":
        services = tuple(service for bundle in bundles for service in bundle.services)
        barred = tuple(node for bundle in bundles for node in bundle.barred)
        wanted = [_Part(_called(services), _sum([bundle.resources for bundle in bundles]), _allowed(barred, nodes))]
    else:
        wanted = [_Part(_called(bundle.services), bundle.resources, _allowed(bundle.barred, nodes)) for bundle in bundles]
    outside = [
        _Part(service, _needs(seat), _allowed(seat.barred, nodes))
        for service, seat in placement.seats.items()
        if seat.bundle is None and _needs(seat)
    ]
    return wanted + outside


def _needs(seat: Seat) -> dict[str, float]:
    return {name: amount for name, amount in {CPU: seat.num_cpus, **seat.resources}.items() if amount}


def _called(services: Sequence[str]) -> str:
    names = tuple(dict.fromkeys(services))
    more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
    return " with ".join([names[0], ", ".join(names[1:_NAMES_TOLD])] if names[1:] else names) + more


def _sum(amounts: Sequence[Amounts]) -> dict[str, float]:
    return {name: math.fsum(each.get(name, 0.0) for each in amounts) for name in dict.fromkeys(name for each in amounts for name in each)}


def _allowed(barred: Sequence[str], nodes: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(node for node in nodes if node.id not in barred)


def _fits(needs: Amounts, there: Amounts) -> bool:
    return all(amount <= there.get(name, 0.0) + _ROUNDING for name, amount in needs.items())


def _in_all(parts: Sequence[_Part], nodes: Sequence[Node], for_good: bool) -> str:
    for name, needed in _sum([part.needs for part in parts]).items():
        total, free = (math.fsum(amounts(node).get(name, 0.0) for node in nodes) for amounts in (_total, _free))
        if needed > (total if for_good else free) + _ROUNDING:
            used = f", {total - free:g} of them in use by others" if total - free > _ROUNDING else ""
            return f"the run needs {needed:g} {name} ({_by_holder(parts, name)}); the cluster has {total:g}{used}"
    return ""


def _by_holder(parts: Sequence[_Part], name: str) -> str:
    """Who needs how much; the trainer's ranks as one."""
    holders: dict[str, float] = {}
    for part in parts:
        if part.needs.get(name):
            holder = part.name.partition(" ")[0]
            holders[holder] = holders.get(holder, 0.0) + part.needs[name]
    told = [f"{holder} {amount:g}" for holder, amount in list(holders.items())[:_NAMES_TOLD]]
    rest = list(holders.values())[_NAMES_TOLD:]
    return ", ".join([*told, *([f"{len(rest)} more {math.fsum(rest):g}"] if rest else [])])


def _on_one_node(parts: Sequence[_Part], amounts: Callable[[Node], Amounts], for_good: bool) -> str:
    for part in parts:
        if not any(_fits(part.needs, amounts(node)) for node in part.nodes):
            has = "has" if for_good else "has free"
            return (
                f"{part.name} needs {amounts_in_words(part.needs)} on one node, and none that it may be on {has} that: "
                f"{_told(part.nodes, part.needs, amounts)}"
            )
    return ""


def _told(nodes: Sequence[Node], needs: Amounts, amounts: Callable[[Node], Amounts]) -> str:
    """What the nodes with the most of it have of what is needed."""
    rarest = next(iter(needs))
    most = sorted(nodes, key=lambda node: -amounts(node).get(rarest, 0.0))
    told = [f"{node.name} {amounts_in_words({name: amounts(node).get(name, 0.0) for name in needs})}" for node in most[:_NODES_TOLD]]
    more = [f"{len(nodes) - _NODES_TOLD} more no more than these"] if len(nodes) > _NODES_TOLD else []
    return "; ".join(told + more)


def _spread(placement: Placement, parts: Sequence[_Part], nodes: Sequence[Node]) -> str:
    number = len(placement.bundles)
    if placement.strategy != "STRICT_SPREAD" or number <= len(nodes):
        return ""
    return f"cluster.strategy strict_spread wants a node for each of {number} parts ({_names(parts[:number])}), and there are {len(nodes)}"


def _names(parts: Sequence[_Part]) -> str:
    told = [part.name for part in parts[:_NAMES_TOLD]]
    return "; ".join([*told, *([f"{len(parts) - _NAMES_TOLD} more"] if len(parts) > _NAMES_TOLD else [])])


def _side_by_side(placement: Placement, parts: Sequence[_Part], nodes: Sequence[Node]) -> Missing | None:
    """The largest parts first, each where it leaves the least; with strict_spread none where another is."""
    free = {node.id: dict(node.free) for node in nodes}
    alone = len(placement.bundles) if placement.strategy == "STRICT_SPREAD" else 0
    taken: dict[str, None] = {}
    order = sorted(enumerate(parts), key=lambda item: (-item[1].needs.get(GPU, 0.0), -item[1].needs.get(CPU, 0.0), len(item[1].nodes)))
    for number, part in order:
        fitting = [n.id for n in part.nodes if _fits(part.needs, free[n.id]) and not (number < alone and n.id in taken)]
        if not fitting:
            return Missing(_crowded(placement, part, nodes), for_good=False)
        best = min(fitting, key=lambda node: tuple(free[node].get(name, 0.0) for name in (GPU, CPU)))
        free[best].update({name: free[best].get(name, 0.0) - amount for name, amount in part.needs.items()})
        if number < alone:
            taken[best] = None
    return None


def _crowded(placement: Placement, part: _Part, nodes: Sequence[Node]) -> str:
    apart = ", each part on a node of its own" if placement.strategy == "STRICT_SPREAD" else ""
    return (
        f"the cluster has enough free in all, but not so that all parts find room{apart}: nothing is left for {part.name}, which needs "
        f"{amounts_in_words(part.needs)} on one node; free are {_told(nodes, part.needs, _free)}"
    )
