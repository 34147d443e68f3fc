"""What the controller knows of each replica, and which of them must be killed. Nothing is assumed to have obeyed.

starting ─ReplicaAdded─▶ asleep (hybrid) | serving (standalone)
asleep ─WakeRequested─▶ waking ─ReplicaAwake─▶ awake ─SleepRequested─▶ (still awake) ─ReplicaAsleep─▶ asleep
any ─ReplicaFailed, deadline─▶ condemned ─KillRequested─▶ ServiceLost (exit verified) ─▶ ReplicaLost
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bus.entry import Entry
from bus.events import (
    Event,
    KillRequested,
    ReplicaAdded,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaFailed,
    ReplicaLost,
    ServiceLost,
    ServiceStarted,
    WakeRequested,
    WeightsApplied,
    WeightUpdateRequested,
)
from bus.reach import Reach
from bus.sources import REPLICA_PREFIX

State = Literal["starting", "asleep", "waking", "awake", "serving"]
Incarnation = tuple[str, int]
"""(replica, epoch)"""


@dataclass
class Replica:
    """One incarnation of one replica."""

    name: str
    epoch: int
    hybrid: bool
    state: State = "starting"
    condemned: str = ""
    """Why it must be killed; empty: it need not."""
    updating: tuple[int, int] | None = None
    """(version, revision) it was asked to load."""


@dataclass
class Replicas:
    """All replicas of the run, by name; newest incarnations only."""

    by_name: dict[str, Replica] = field(default_factory=dict)
    exited: dict[Incarnation, None] = field(default_factory=dict)
    """Exits that were verified (ServiceLost) and not yet declared as ReplicaLost."""
    lost: dict[str, int] = field(default_factory=dict)
    """Replica -> highest epoch declared lost."""
    to_kill: dict[Incarnation, str] = field(default_factory=dict)
    """Condemned incarnations whose KillRequested is due -> reason."""
    killing: dict[Incarnation, None] = field(default_factory=dict)
    """KillRequested without ReplicaLost."""
    given_up: dict[str, None] = field(default_factory=dict)
    """Replicas that will not be restarted."""
    reach: Reach = field(default_factory=Reach)

    def apply(self, entry: Entry) -> None:
        """Takes in one entry."""
        event = entry.event
        self.reach.apply(entry)
        match event:
            case ServiceStarted() if entry.source.startswith(REPLICA_PREFIX):
                self._start(entry.source.removeprefix(REPLICA_PREFIX), entry.epoch, event.role == "hybrid")
            case ServiceLost() if event.service.startswith(REPLICA_PREFIX):
                self._exit(event.service.removeprefix(REPLICA_PREFIX), event)
            case ReplicaLost():
                self._lose(event)
            case KillRequested():
                self.to_kill.pop((event.replica, event.epoch), None)
                if not self.is_lost(event.replica, event.epoch):
                    self.killing[event.replica, event.epoch] = None
            case WakeRequested():
                self._set(event.replica, event.epoch, "waking")
            case ReplicaAdded():
                self._set(event.replica, entry.epoch, "asleep" if event.role == "hybrid" else "serving")
            case ReplicaAwake():
                self._set(event.replica, entry.epoch, "awake")
            case ReplicaAsleep():
                self._set(event.replica, entry.epoch, "asleep")
            case ReplicaFailed():
                self.condemn(event.replica, entry.epoch, f"{event.during}: {event.error}")
            case WeightUpdateRequested():
                self._update(event.replica, event.epoch, (event.version, event.revision))
            case WeightsApplied():
                self._updated(event, entry.epoch)
            case _:
                pass

    def _start(self, name: str, epoch: int, hybrid: bool) -> None:
        before = self.by_name.get(name)
        self.by_name[name] = Replica(name, epoch, hybrid)
        self.given_up.pop(name, None)
        if before is not None and before.epoch < epoch and before.state in ("waking", "awake"):
            self._condemn_incarnation(name, before.epoch, "replaced by a newer incarnation; its exit was never verified")

    def _exit(self, name: str, event: ServiceLost) -> None:
        if not self.is_lost(name, event.epoch):
            self.exited[name, event.epoch] = None
        if not event.restarting:
            self.given_up[name] = None

    def _lose(self, event: ReplicaLost) -> None:
        self.lost[event.replica] = max(self.lost.get(event.replica, 0), event.epoch)
        for waiting in (self.exited, self.to_kill, self.killing):
            for name, epoch in [key for key in waiting if self.is_lost(*key)]:
                del waiting[name, epoch]
        replica = self.by_name.get(event.replica)
        if replica is not None and replica.epoch <= event.epoch:
            del self.by_name[event.replica]

    def _set(self, name: str, epoch: int, state: State) -> None:
        replica = self.current(name, epoch)
        if replica is not None:
            replica.state = state

    def _update(self, name: str, epoch: int, weights: tuple[int, int]) -> None:
        replica = self.current(name, epoch)
        if replica is not None:
            replica.updating = weights

    def _updated(self, event: WeightsApplied, epoch: int) -> None:
        replica = self.current(event.replica, epoch)
        if replica is not None and replica.updating is not None and replica.updating <= (event.version, event.revision):
            replica.updating = None

    def current(self, name: str, epoch: int) -> Replica | None:
        """This incarnation, if it is the newest one and not lost."""
        replica = self.by_name.get(name)
        return replica if replica is not None and replica.epoch == epoch else None

    def is_lost(self, name: str, epoch: int) -> bool:
        """ReplicaLost covers this incarnation."""
        return epoch <= self.lost.get(name, 0)

    def condemn(self, name: str, epoch: int, reason: str) -> None:
        """This incarnation must be killed, its exit verified."""
        replica = self.current(name, epoch)
        if replica is not None:
            replica.condemned = replica.condemned or reason
        self._condemn_incarnation(name, epoch, reason)

    def _condemn_incarnation(self, name: str, epoch: int, reason: str) -> None:
        key = (name, epoch)
        if not self.is_lost(name, epoch) and key not in self.killing and key not in self.exited:
            self.to_kill.setdefault(key, reason)

    def decide(self) -> Event | None:
        """The next loss to declare, or incarnation to kill."""
        for name, epoch in self.exited:
            return ReplicaLost(replica=name, epoch=epoch)
        for (name, epoch), reason in self.to_kill.items():
            return KillRequested(replica=name, epoch=epoch, reason=reason)
        return None

    def any_added(self) -> bool:
        """Some replica has its engine up."""
        return any(replica.state != "starting" for replica in self.by_name.values())

    def all_settled(self, configured: tuple[str, ...]) -> bool:
        """Every configured replica has its engine up, or will not come."""
        up = {replica.name for replica in self.by_name.values() if replica.state != "starting"}
        return all(name in up or name in self.given_up for name in configured)

    def all_given_up(self, configured: tuple[str, ...]) -> bool:
        """Every configured replica is lost, and none will be restarted."""
        return not self.by_name and all(name in self.given_up for name in configured)

    def wakeable(self) -> dict[str, int]:
        """Hybrids that could be woken now: added, asleep, of use, and the newest weights are where they can read them. Name -> epoch."""
        return {
            replica.name: replica.epoch
            for replica in self.by_name.values()
            if replica.hybrid
            and replica.state == "asleep"
            and not replica.condemned
            and not self._has_exited(replica)
            and self.reach.can_read_newest(replica.name)
        }

    def standalone_serves(self) -> bool:
        """A standalone replica can serve, now or after its update."""
        for replica in self.by_name.values():
            if replica.state == "serving" and not replica.condemned and not self._has_exited(replica):
                return True
        return False

    def is_awake(self, name: str, epoch: int) -> bool:
        """This incarnation said that it is awake, and nothing worse since."""
        replica = self.current(name, epoch)
        return replica is not None and replica.state == "awake" and not replica.condemned and not self._has_exited(replica)

    def is_off_devices(self, name: str, epoch: int) -> bool:
        """This incarnation, once woken, is asleep again or lost."""
        replica = self.current(name, epoch)
        return self.is_lost(name, epoch) or (replica is not None and replica.state == "asleep" and not replica.condemned)

    def _has_exited(self, replica: Replica) -> bool:
        return (replica.name, replica.epoch) in self.exited
