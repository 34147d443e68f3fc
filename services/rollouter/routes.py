"""Which replicas may get requests, and which one gets the next: a fold of the replicas' own words and of routes opened and cut.

A replica is routable when it is added, alive, has weights, is not updating, was not caught refusing or failing, and, if hybrid, its
route is open. Among those with a free slot the least loaded (requests per slot) gets the next request; ties rotate by request number, so
that low load spreads, too. An answer that goes on stays on its replica if it has not left for a reason; one that failed goes elsewhere.
A replica is asked to load only weights that it can read where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.entry import Entry
from bus.events import (
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaAdded,
    ReplicaAwake,
    ReplicaFailed,
    ReplicaLost,
    RoutesCut,
    RoutesOpened,
    ServiceLost,
    ServiceStarted,
    WeightsApplied,
    WeightsPublished,
    WeightsShared,
    WeightUpdateRequested,
)
from bus.reach import Reach
from bus.requests import Requests
from bus.sources import REPLICA_PREFIX
from services.rollouter.free_slots import FreeSlots

CONCERN_ALL = frozenset[type[Event]]({RoutesCut, RoutesOpened, WeightsPublished, WeightsShared})
"""After these any replica may have become routable, or need other weights."""


@dataclass
class Route:
    """What the rollouter knows of one incarnation of one replica."""

    name: str
    epoch: int
    hybrid: bool = False
    slots: int = 0
    """0 until the replica has said that its engine is up."""
    swing: int = 0
    opened: bool = False
    """Hybrid: the route is open."""
    serves: tuple[int, int] | None = None
    """(version, revision) of the weights it serves."""
    updating: tuple[int, int] | None = None
    """(version, revision) that it was asked to load."""
    suspect: bool = False
    """It refused a request; nothing is routed to it until it has declared its weights anew."""
    failed: bool = False
    """It is of no use any more and will be killed."""
    exited: bool = False
    """It has ended: nothing is asked of it any more, though its loss is not declared yet."""
    pinned: bool = False
    """It serves an evaluation alone, with the weights under evaluation."""

    @property
    def routable(self) -> bool:
        """May get requests now."""
        return self.can_serve and self.serves is not None and self.updating is None and not self.suspect and not self.pinned

    @property
    def can_serve(self) -> bool:
        """May get requests now or after its update."""
        return self.in_service and not self.exited

    @property
    def in_service(self) -> bool:
        """As far as replicas and controller have declared, it can serve."""
        return self.slots > 0 and not self.failed and (self.opened or not self.hybrid)


class Routes:
    """All replicas of a run, by name."""

    def __init__(self, requests: Requests) -> None:
        self.by_name: dict[str, Route] = {}
        self.reach = Reach()
        self._requests = requests
        self._pinned = ""
        self._free = FreeSlots()
        self._behind: dict[str, None] = {}
        """Those that have neither the newest weights nor been asked to load them."""

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        self.reach.apply(entry)
        self._apply(entry)
        changed, self._requests.changed = self._requests.changed, {}
        if type(entry.event) in CONCERN_ALL:
            changed = dict.fromkeys(self.by_name)
        elif (name := _replica_of(entry)) in self.by_name:
            changed[name] = None
        for name in changed:
            self._file(name)

    def _file(self, name: str) -> None:
        route, newest = self.by_name.get(name), self.reach.newest
        if route is None:
            return
        self._free.file(name, self._requests.load(name), route.slots if route.routable else 0)
        if newest is not None and self._is_behind(route, newest):
            self._behind[name] = None
        else:
            self._behind.pop(name, None)

    def _apply(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case GenerationRequested():
                pass
            case ServiceStarted() if entry.source.startswith(REPLICA_PREFIX):
                name = entry.source.removeprefix(REPLICA_PREFIX)
                self.by_name[name] = Route(name, entry.epoch, hybrid=event.role == "hybrid")
                self._free.add(name)
            case ReplicaLost():
                route = self.by_name.get(event.replica)
                if route is not None and route.epoch <= event.epoch:
                    del self.by_name[event.replica]
                    self._free.remove(event.replica)
                    self._behind.pop(event.replica, None)
            case ServiceLost() if event.service.startswith(REPLICA_PREFIX):
                # The controller's ReplicaLost follows; in a run that is resumed the rollouter may be there long before the controller.
                route = self.by_name.get(event.service.removeprefix(REPLICA_PREFIX))
                if route is not None and route.epoch <= event.epoch:
                    route.exited = True
            case RoutesOpened():
                self._open(event)
            case RoutesCut():
                for route in self.by_name.values():
                    route.opened = False
            case WeightUpdateRequested():
                route = self.by_name.get(event.replica)
                if route is not None and route.epoch == event.epoch:
                    route.updating = (event.version, event.revision)
            case ReplicaAdded() | ReplicaAwake() | WeightsApplied() | ReplicaFailed() | GenerationFinished():
                route = self.by_name.get(event.replica)
                if route is not None and route.epoch == entry.epoch:
                    _hear(route, event)
            case _:
                pass

    def pin(self, name: str) -> None:
        """From here on this replica is an evaluation's; empty: none is."""
        if name != self._pinned:
            self._pinned = name
            for route in self.by_name.values():
                route.pinned = route.name == name
                self._file(route.name)

    def _open(self, event: RoutesOpened) -> None:
        for name in event.replicas:
            route = self.by_name.get(name)
            if route is not None:
                route.opened = True

    def to_update(self, newest: WeightsPublished | None) -> Route | None:
        """A serving replica that has neither the newest weights nor been asked to load them; a pinned one keeps what it has."""
        if newest is None:
            return None
        if newest is self.reach.newest:
            return self.by_name[min(self._behind, key=self._free.place)] if self._behind else None
        return next((route for route in self.by_name.values() if self._is_behind(route, newest)), None)

    def _is_behind(self, route: Route, newest: WeightsPublished) -> bool:
        wanted = (newest.version, newest.revision)
        if route.pinned or not route.can_serve or not self.reach.can_read(route.name, newest):
            return False
        return not (route.serves == wanted and not route.suspect) and route.updating != wanted

    def choose(self, number: int, stay: str = "", avoid: str = "") -> Route | None:
        """The replica for request `number`, or None when every slot is taken.

        `stay`: where the answer was before, and goes on if it can, for what is cached there. `avoid`: where it failed; only if no other is
        free.
        """
        name = stay if self._free.has(stay) else self._free.choose(number, avoid)
        return None if name is None else self.by_name[name]

    def free_slots(self) -> int:
        """Requests that could be routed now."""
        return self._free.count

    def is_new(self, name: str) -> bool:
        """A replica that has not served anything yet."""
        route = self.by_name.get(name)
        return route is not None and not route.hybrid and route.serves is None

    def any_can_serve(self) -> bool:
        """Some replica serves, or will after its update; one that has exited counts until its loss is declared."""
        return any(route.in_service for route in self.by_name.values())

    def moves(self, waiting: int) -> list[tuple[str, tuple[str, ...]]]:
        """What rebalancing aborts: of each overloaded replica the newest requests above the even share, `waiting` ones counted in.

        Nothing is moved that would not find a free slot below the even share elsewhere (C-41).
        """
        routable = [route for route in self.by_name.values() if route.routable]
        slots = sum(route.slots for route in routable)
        if len(routable) < 2 or slots == 0:
            return []
        total = min(slots, waiting + sum(self._requests.load(route.name) for route in routable))
        found = []
        for route in routable:
            share = -(-total * route.slots // slots)
            surplus = self._requests.load(route.name) - share
            if surplus > 0:
                newest = list(self._requests.open[route.name])[-surplus:]
                found.append((route.name, tuple(request for request, _ in newest)))
        return found


def _replica_of(entry: Entry) -> str:
    """The replica that an entry is of or about; empty: it is about none."""
    event = entry.event
    match event:
        case ReplicaAdded() | ReplicaAwake() | WeightsApplied() | ReplicaFailed() | GenerationFinished() | WeightUpdateRequested():
            return event.replica
        case ServiceStarted():
            return entry.source.removeprefix(REPLICA_PREFIX)
        case ServiceLost():
            return event.service.removeprefix(REPLICA_PREFIX)
        case _:
            return ""


def _hear(route: Route, event: ReplicaAdded | ReplicaAwake | WeightsApplied | ReplicaFailed | GenerationFinished) -> None:
    """What a replica says of itself."""
    match event:
        case ReplicaAdded():
            route.slots = event.slots
        case ReplicaAwake():
            route.swing = event.swing
            route.serves = (event.version, event.revision)
            route.updating = None
            route.suspect = False
        case WeightsApplied():
            route.serves = (event.version, event.revision)
            route.suspect = False
            if route.updating is not None and route.updating <= route.serves:
                route.updating = None
        case ReplicaFailed():
            route.failed = True
        case GenerationFinished(outcome="refused"):
            route.suspect = True
        case _:
            pass
