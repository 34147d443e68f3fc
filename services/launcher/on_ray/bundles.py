"""Where each reserved part of a run is: in the group that was reserved at its start, or in one of its own, once it had to leave a node.

    the first group ─ its node is lost, and Ray's next one lacks something ─▶ a group of its own, barred from that node
          ▲                                                                                 │
          └── it has no room yet, and Ray has found the part another node here meanwhile ◀──┘

What a part may not be on is said when its group is made, and Ray looks for another node by that for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.launcher.on_ray.placement import Bundle, Placement, selector_of

Fit = Callable[[str, Sequence[str]], bool]
"""A node's id, services -> nothing is known that these lack there, and the node is alive."""


class PlacementGroups(Protocol):
    """Ray's."""

    def make(self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str, selectors: Sequence[Mapping[str, str]]) -> object:
        """Asks for a group; returns at once."""

    def nodes(self, group: object) -> Mapping[int, str]:
        """Bundle -> id of the node that it is on, or was last; nothing of those that have never had one, or while nobody says."""

    def remove(self, group: object) -> None:
        """Gives back what it reserves."""


@dataclass(frozen=True, slots=True)
class _Moved:
    """A group that was made in place of a part of the first one."""

    group: object
    barred: tuple[str, ...]
    first: int
    """Which bundle of the run its first one is."""


class Bundles:
    """Of one run. `group`: the first; None: nothing of this run is reserved."""

    def __init__(self, placement: Placement, group: object | None, name: str, groups: PlacementGroups) -> None:
        self._placement = placement
        self._group = group
        self._name = name
        self._groups = groups
        self._numbers = itertools.count(1)
        self._moved: dict[int, _Moved] = {}

    def where(self, bundle: int) -> tuple[object | None, int]:
        """Its group, and its number there."""
        moved = self._moved.get(bundle)
        return (self._group, bundle) if moved is None else (moved.group, bundle - moved.first)

    def barred(self, bundle: int) -> tuple[str, ...]:
        """Ids of nodes that it may not be on."""
        moved = self._moved.get(bundle)
        return self._placement.bundles[bundle].barred if moved is None else moved.barred

    def together(self, bundle: int) -> range:
        """Which bundles must be on its node, too."""
        return range(len(self._placement.bundles)) if self._placement.strategy == "STRICT_PACK" else range(bundle, bundle + 1)

    def services(self, bundle: int) -> tuple[str, ...]:
        """Who must be on its node."""
        return tuple(dict.fromkeys(name for number in self.together(bundle) for name in self._placement.bundles[number].services))

    def leave(self, bundle: int, barred: Sequence[str]) -> None:
        """Looks for another node for it, and for what must be with it, that is none of these either."""
        numbers = self.together(bundle)
        bundles = [self._placement.bundles[number] for number in numbers]
        others = self._others(bundle) if self._placement.strategy == "STRICT_SPREAD" else ()
        selectors = [selector_of((*each.barred, *barred, *others)) for each in bundles]
        group = self._groups.make(
            f"{self._name}:moved-{next(self._numbers)}", [dict(each.resources) for each in bundles], self._strategy(bundles), selectors
        )
        self._forget(bundle)
        for number, each in zip(numbers, bundles, strict=True):
            self._moved[number] = _Moved(group, (*each.barred, *barred), numbers.start)

    def found_again(self, fits: Fit) -> list[int]:
        """Bundles that wait for a node and that Ray has found one for in the first group: they are there from now on."""
        found: list[int] = []
        for bundle in [number for number, moved in self._moved.items() if number == moved.first]:
            moved, numbers, services = self._moved[bundle], self.together(bundle), self.services(bundle)
            if any(fits(node, ()) for node in self._groups.nodes(moved.group).values()):
                continue
            there = self._groups.nodes(self._group)
            if all(number in there and fits(there[number], services) for number in numbers):
                self._forget(bundle)
                found += numbers
        return found

    def close(self) -> None:
        """Gives back what was reserved besides the first group."""
        for bundle in list(self._moved):
            self._forget(bundle)

    def _forget(self, bundle: int) -> None:
        """Its own group, if it has one, with all that is in that."""
        moved = self._moved.get(bundle)
        if moved is None:
            return
        self._moved = {number: other for number, other in self._moved.items() if other.group is not moved.group}
        self._groups.remove(moved.group)

    def _others(self, bundle: int) -> tuple[str, ...]:
        """Nodes that other bundles are on."""
        found = []
        for number in range(len(self._placement.bundles)):
            group, index = self.where(number)
            node = self._groups.nodes(group).get(index) if number != bundle else None
            found += [node] if node is not None else []
        return tuple(found)

    def _strategy(self, bundles: Sequence[Bundle]) -> str:
        return self._placement.strategy if bundles[1:] else "PACK"
