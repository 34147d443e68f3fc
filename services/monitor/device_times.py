"""Where the time of every device goes, and how much of it is used.

    devices with the same holders are one group:   0: s0        1: trainer, h0
    its class now ──▶ every interval of the run's time is added to exactly one class of each group that is held

A device is held from the opening of boundary 0, or from the start of its first holder if that comes later, until the run ends or none of
its holders will come back. Its classes add up to that time exactly: they are sums of the same intervals, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bus.entry import Entry
from bus.events import (
    GenerationFinished,
    GenerationRequested,
    Measured,
    RolloutPaused,
    RolloutResumed,
    RunPlanned,
    SampleMoved,
    SampleReady,
    SampleStarted,
    ServiceLost,
    ServiceStarted,
    WeightsApplied,
    WeightUpdateRequested,
)
from bus.sources import REPLICA_PREFIX
from services.monitor.classes import CLASSES, Class
from services.monitor.frozen import Frozen
from services.monitor.replicas import Doing, ReplicaState, ReplicaStates
from services.monitor.run_clock import has_time
from services.monitor.swings import Holder
from services.monitor.trainer_activity import SOURCE, TrainerActivity

OF_REPLICA: dict[Doing, Class] = {
    "starting": "starting", "asleep": "idle", "idle": "idle", "generate": "generating", "update": "updating", "evaluate": "evaluating",
    "lost": "lost",
}  # fmt: skip
BUSY: tuple[Class, ...] = ("training", "publishing", "checkpoint")
"""What the trainer does with its devices."""
_CHANGES_NOTHING = (SampleStarted, SampleMoved, SampleReady, Measured)
_OF_ONE_REPLICA = (GenerationRequested, GenerationFinished, WeightUpdateRequested, WeightsApplied)
"""The frequent ones, so that a hundred replicas cost no more than one."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Device-seconds up to some moment; the difference of two is what happened between them."""

    classes: Mapping[Class, float]
    held: float
    """All devices that are held, whoever holds them."""
    home: float
    """Of the trainer's devices, with it: neither lent nor swinging."""
    training: float
    capacity: float
    """Of devices with a replica that serves."""
    generating: float
    """The same, times the share of its request slots that are taken."""
    standalone_s: float
    """Seconds (not of devices) in which a standalone replica generated."""

    def __sub__(self, other: Totals) -> Totals:
        return Totals(
            {name: seconds - other.classes.get(name, 0.0) for name, seconds in self.classes.items()},
            self.held - other.held, self.home - other.home, self.training - other.training,
            self.capacity - other.capacity, self.generating - other.generating, self.standalone_s - other.standalone_s,
        )  # fmt: skip

    @property
    def train_utilization(self) -> float | None:
        """Busy share of the trainer's devices while it has them."""
        return share(self.training, self.home)

    @property
    def rollout_utilization(self) -> float | None:
        """Taken share of the request slots of the replicas that served at each moment, weighted by their devices."""
        return share(self.generating, self.capacity)

    @property
    def utilization(self) -> float | None:
        """Training, and generating by the share of slots taken, of all device-seconds held."""
        return share(self.training + self.generating, self.held)


@dataclass
class Group:
    """Devices with the same holders."""

    devices: tuple[str, ...]
    holders: tuple[str, ...]
    """`trainer` and names of replicas."""
    doing: Class | None = None
    """None: not held now."""
    nanoseconds: dict[Class, int] = field(default_factory=dict)
    home_ns: int = 0
    capacity_ns: int = 0
    generating_ns: float = 0.0
    since: int = 0
    home: bool = False
    load: int = 0
    slots: int = 0
    """Requests that its serving replicas run, and can run, at a time."""

    @property
    def name(self) -> str:
        """Its devices, else its first holder's name."""
        return ",".join(self.devices) or self.holders[0]

    @property
    def count(self) -> int:
        """How many devices it is; one, when it is not said."""
        return max(1, len(self.devices))

    def settle(self, now: int) -> None:
        """Adds the time since the last call to what was the case in it."""
        passed, self.since = now - self.since, now
        if passed == 0 or self.doing is None:
            return
        self.nanoseconds[self.doing] = self.nanoseconds.get(self.doing, 0) + passed
        self.home_ns += passed if self.home else 0
        if self.slots:
            self.capacity_ns += passed
            self.generating_ns += passed * self.load / self.slots


class DeviceTimes:
    """Fold of who holds which device and what it does with it. `replicas` has seen each entry already."""

    def __init__(self, replicas: ReplicaStates) -> None:
        self.groups: list[Group] = []
        self._replicas = replicas
        self._trainer = TrainerActivity()
        self._frozen = Frozen()
        self._by_holder: dict[str, list[Group]] = {}
        self._there: dict[str, bool] = {}
        """Holder -> whether it may still do something: False once it will not come back."""
        self._paused: dict[str, None] = {}
        self._slots = 1
        self._running = False
        self._overlooked = False
        """An entry without a time has changed something."""
        self._now = 0
        self._holder: Holder = "home"
        self._standalone_since: int | None = None
        self._standalone_ns = 0

    def plan(self, plan: RunPlanned) -> None:
        """Which devices there are, and who holds them."""
        self._slots = plan.max_running_requests
        holders = {SOURCE: plan.devices.get(SOURCE, "")}
        holders |= {name: plan.devices.get(REPLICA_PREFIX + name, "") for name in plan.standalone + plan.hybrid}
        by_device: dict[str, list[str]] = {}
        for name, devices in holders.items():
            for device in devices.split(",") if devices else [""]:
                # Without devices a hybrid replica is where the trainer is, and everybody else somewhere of its own.
                place = device or (SOURCE if name in plan.hybrid else name)
                by_device.setdefault(place, []).append(name)
        by_holders: dict[tuple[str, ...], list[str]] = {}
        for place, names in by_device.items():
            by_holders.setdefault(tuple(names), []).extend([] if place in holders else [place])
        self.groups = []
        for group, places in by_holders.items():
            self._add(Group(tuple(places), group))

    def _add(self, group: Group) -> None:
        self.groups.append(group)
        for name in group.holders:
            self._by_holder.setdefault(name, []).append(group)
            self._there[name] = True

    def open(self, now: int) -> None:
        """Time counts from here on."""
        self._running, self._now = True, now
        for group in self.groups:
            group.since = now
        self._look(self.groups)

    def end(self, now: int) -> None:
        """Time counts no more."""
        self._settle(now, self.groups)
        self._running = False

    def apply(self, entry: Entry, now: int, holder: Holder) -> None:
        """Takes in one entry, after the replicas and the swings did."""
        event = entry.event
        self._trainer.apply(entry)
        self._holder = holder
        if isinstance(event, _CHANGES_NOTHING):
            return
        if isinstance(event, _OF_ONE_REPLICA):
            touched: Sequence[Group] = self._by_holder.get(event.replica, ())
        else:
            self._note(entry)
            touched = self.groups
        if not has_time(entry):
            # When it was is not known: what it changed counts from the next entry on, not for the silence before.
            self._overlooked = True
        elif self._running:
            touched, self._overlooked = self.groups if self._overlooked else touched, False
            self._settle(now, touched)
            if isinstance(event, WeightUpdateRequested | WeightsApplied) and (frozen := self._frozen.apply(event, now)):
                self._take_back(touched, event.replica, frozen)
            self._look(touched)

    def _take_back(self, groups: Sequence[Group], replica: str, frozen: int) -> None:
        """What is in flight on a replica took its slots, but was frozen for so long."""
        for group in groups:
            if group.slots:
                group.generating_ns -= frozen * min(self._slots, self._replicas.in_flight(replica)) / group.slots

    def _note(self, entry: Entry) -> None:
        match entry.event:
            case RolloutPaused() as event:
                self._paused[event.reason] = None
            case RolloutResumed() as event:
                self._paused.pop(event.reason, None)
            case ServiceStarted():
                name = entry.source.removeprefix(REPLICA_PREFIX)
                if name in self._replicas.by_name and name not in self._there:
                    self._add(Group((), (name,)))
                if name in self._there:
                    self._there[name] = True
            case ServiceLost(restarting=False) as event:
                name = event.service.removeprefix(REPLICA_PREFIX)
                if name in self._there:
                    self._there[name] = False
            case _:
                pass

    def _settle(self, now: int, groups: Sequence[Group]) -> None:
        if not self._running:
            return
        self._now = now
        for group in groups:
            group.settle(now)
        if self._standalone_since is not None:
            self._standalone_ns += now - self._standalone_since
        self._standalone_since = now if self._standalone_generates() else None

    def _standalone_generates(self) -> bool:
        return any(not state.hybrid and state.there and self._replicas.in_flight(name) for name, state in self._replicas.by_name.items())

    def _look(self, groups: Sequence[Group]) -> None:
        """What each of these groups does from now on."""
        for group in groups:
            states = [self._replicas.by_name[name] for name in group.holders if name in self._replicas.by_name]
            serving = [state for state in states if state.serves]
            group.load = sum(min(self._slots, self._replicas.in_flight(state.name)) for state in serving)
            group.slots = self._slots * len(serving)
            group.doing = self._class(group, states)
            group.home = SOURCE in group.holders and (self._holder == "home" or group.doing in BUSY)

    def _class(self, group: Group, states: Sequence[ReplicaState]) -> Class | None:
        if not any(self._there[name] for name in group.holders):
            return None
        hybrids = [self._of(state) for state in states if state.hybrid]
        others = [self._of(state) for state in states if not state.hybrid]
        if SOURCE not in group.holders:
            return first(hybrids + others)
        # A hybrid replica has the devices only while they are lent: that its engine starts, or is lost, is no use of them before.
        return first(others + (hybrids or ["idle"] if self._holder == "lent" else [self._of_trainer()]))

    def _of_trainer(self) -> Class:
        doing = self._trainer.doing()
        # While a swing begins the trainer may still be busy with what it began before; all else is the swing's.
        return doing if self._holder == "home" or doing in BUSY else "swinging"

    def _of(self, state: ReplicaState) -> Class:
        found = OF_REPLICA[state.doing(self._replicas.in_flight(state.name))]
        return "paused" if found == "idle" and self._paused.keys() & {"staleness", "memory"} else found

    # --- what comes out ----------------------------------------------------------------------------------------------------------

    def seconds(self, group: Group) -> dict[Class, float]:
        """Class -> seconds of each device of a group, in the order of the classes."""
        return {name: group.nanoseconds[name] / 1e9 for name in CLASSES if name in group.nanoseconds}

    def totals(self, now: int) -> Totals:
        """All devices together, up to `now`."""
        self._settle(now, self.groups)
        classes: dict[Class, float] = {}
        for group in self.groups:
            for name, spent in group.nanoseconds.items():
                classes[name] = classes.get(name, 0.0) + group.count * spent / 1e9
        return Totals(
            classes=classes,
            held=sum(classes.values()),
            home=sum(group.count * group.home_ns for group in self.groups) / 1e9,
            training=classes.get("training", 0.0),
            capacity=sum(group.count * group.capacity_ns for group in self.groups) / 1e9,
            generating=sum(group.count * group.generating_ns for group in self.groups) / 1e9,
            standalone_s=self._standalone_ns / 1e9,
        )


def first(classes: Sequence[Class]) -> Class:
    """The class of a device on which all of these go on."""
    return min(classes, key=CLASSES.index)


def share(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole > 0 else None
