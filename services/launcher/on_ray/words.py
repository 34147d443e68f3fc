"""A placement for people: what is reserved together, how much of it, and which nodes it cannot be on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bus.sources import REPLICA_PREFIX
from services.launcher.on_ray.placement import Node, Placement
from services.launcher.on_ray.room import amounts_in_words

_PARTS_TOLD = 4
_NODES_TOLD = 3


def placed_words(placement: Placement, nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """(who, where), parts that are alike in one line."""
    alike: dict[tuple[str, tuple[str, ...], bool], list[str]] = {}
    for bundle in placement.bundles:
        alike.setdefault((amounts_in_words(bundle.resources), bundle.barred, bundle.held), []).append(_together(bundle.services))
    lacks = {node.id: node for node in nodes}
    lines = []
    for (amounts, barred, _), parts in alike.items():
        each = f"{amounts} on one node{', each' if len(parts) > 1 else ''}"
        lines.append((_some(parts), f"{each}{_barred(barred, parts, lacks)}"))
    for service, seat in placement.seats.items():
        if seat.bundle is None:
            amounts = amounts_in_words({"CPU": seat.num_cpus, **seat.resources})
            what = "any node" if amounts == "nothing" else f"any node with {amounts}"
            lines.append((service, f"{what}{_barred(seat.barred, [service], lacks)}"))
    return lines


def _together(services: Sequence[str]) -> str:
    return " + ".join(name.removeprefix(REPLICA_PREFIX) for name in dict.fromkeys(services))


def _some(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _PARTS_TOLD} more" if len(parts) > _PARTS_TOLD else ""
    return ", ".join(parts[:_PARTS_TOLD]) + more


def _barred(barred: Sequence[str], parts: Sequence[str], nodes: Mapping[str, Node]) -> str:
    """Which nodes it cannot be on, and why: the first reason of whoever lacks something there."""
    if not barred:
        return ""
    told = [f"not on {nodes[node].name}: {next(iter(nodes[node].lacks.values()))}" for node in barred[:_NODES_TOLD] if nodes[node].lacks]
    more = [f"nor on {len(barred) - _NODES_TOLD} more nodes"] if len(barred) > _NODES_TOLD else []
    return "; " + "; ".join(told + more)
