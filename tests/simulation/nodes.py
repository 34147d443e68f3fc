"""Machines of a cluster: each service sits on one; a lost machine takes all its services and its memory with it, at one instant.

seat: trainer + hybrids together │ each other service for itself
lost: they die ▸ (the cluster says so) ServiceLost of each ▸ they come back elsewhere
      or only the cluster has lost it: its services act on, until a successor fences them out or their lease is over

Weights lie in the memory of the trainer's machine while all replicas are there, else in the shared folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from tests.simulation.plans import ARROWS

FOLDER = -1
"""Where weights lie that every machine can read."""
GANG = "the trainer and its hybrids"
MOST_CHECKPOINTS = 40
"""That an operator asks for in one run: without a bound no deadline would ever pass."""


@dataclass
class Losses:
    """How many machines there are, and which are lost when."""

    count: int = 1
    most: int = 0
    chance: float = 0.0
    """At each tick."""
    aimed: dict[str, int] = field(default_factory=dict)
    """Kind -> how many more of it until a machine is lost right after its append."""
    victim: str = ""
    """A service whose machine an aimed loss hits; empty: any."""
    cut_off: float = 0.0
    """Share of losses of machines that live on."""
    checkpoints: float = 0.0
    """At each tick, that an operator asks for one."""


def draw_losses(random: Random) -> Losses:
    """Of one seed."""
    return Losses(
        count=random.choice((2, 3, 3, 4)),
        most=random.randint(1, 5),
        chance=random.choice((0.0, 0.003, 0.01)),
        aimed={kind: random.randint(1, 3) for kind in random.sample(ARROWS, random.randint(1, 4))},
        cut_off=random.choice((0.0, 0.0, 0.3, 1.0)),
        checkpoints=random.choice((0.0, 0.0, 0.02, 0.1)),
    )


class Nodes:
    """The machines of one run. Randomness of its own leaves the rest of a seed as it is."""

    def __init__(self, run: str, losses: Losses | None = None) -> None:
        self.random = Random(f"nodes of {run}")
        self.losses = losses or Losses()
        self.lost = 0
        """How many have been."""
        self._checkpoints = MOST_CHECKPOINTS
        self._alive = list(range(self.losses.count))
        self._next = self.losses.count
        self._seats: dict[str, int] = {}
        self.weights: dict[str, tuple[int, set[int]]] = {}
        """Publication that is kept -> epoch of the trainer that made it, where it lies."""

    # --- seats -------------------------------------------------------------------------------------------------------------------

    def name(self, node: int) -> str:
        """What services say where they are; nothing where there is one machine only."""
        return f"machine {node}" if self.losses.count > 1 else ""

    def is_there(self, node: int) -> bool:
        """The cluster has this machine."""
        return node in self._alive

    def has_room(self) -> bool:
        """Some machine is there."""
        return bool(self._alive)

    def place(self, source: str, hybrid: bool) -> int:
        """Where a new incarnation goes: where the last one was, else elsewhere."""
        if not self._alive:
            self.grow()
        group = GANG if hybrid or source == "trainer" else source
        if self._seats.get(group) not in self._alive:
            self._seats[group] = self.random.choice(self._alive)
        return self._seats[group]

    def can_grow(self) -> bool:
        """A machine that was lost has not been replaced."""
        return len(self._alive) < self.losses.count

    def grow(self) -> None:
        """Another machine comes."""
        self._alive.append(self._next)
        self._next += 1

    # --- losses ------------------------------------------------------------------------------------------------------------------

    def strikes(self) -> bool:
        """Whether a machine is lost at this tick."""
        losses = self.losses
        return bool(losses.chance and self.lost < losses.most and self._alive and self.random.random() < losses.chance)

    def asks_for_checkpoint(self) -> bool:
        """Whether an operator does at this tick."""
        wanted = bool(self.losses.checkpoints and self._checkpoints and self.random.random() < self.losses.checkpoints)
        self._checkpoints -= wanted
        return wanted

    def strikes_after(self, kind: str) -> bool:
        """Whether a machine is lost after this append."""
        aimed = self.losses.aimed
        if kind not in aimed:
            return False
        aimed[kind] -= 1
        return aimed[kind] == 0 and bool(self._alive)

    def victim(self) -> int:
        """The machine that is lost."""
        return self.random.choice(self._alive)

    def lose(self, node: int) -> bool:
        """The cluster has lost a machine. True: it runs on, out of the cluster's sight; else what lay in its memory is gone."""
        self.lost += 1
        self._alive.remove(node)
        if self.random.random() < self.losses.cut_off:
            return True
        for _, places in self.weights.values():
            places.discard(node)
        return False

    # --- weights -----------------------------------------------------------------------------------------------------------------

    def publish(self, uri: str, epoch: int, node: int | None) -> None:
        """Writes weights into the memory of a machine; None: into the folder."""
        self.weights[uri] = (epoch, {FOLDER if node is None else node})

    def keep(self, kept: Iterable[str], epoch: int) -> None:
        """Removes what trainers up to this epoch have made, but those: one that was fenced out must leave its successor's alone."""
        self.weights = {uri: made for uri, made in self.weights.items() if uri in kept or made[0] > epoch}

    def lacks(self, uri: str, node: int) -> bool:
        """Weights that are kept cannot be read on a machine."""
        return uri in self.weights and not self.weights[uri][1] & {FOLDER, node}

    def into_folder(self, uri: str) -> None:
        """They are there, too."""
        self.weights[uri][1].add(FOLDER)
