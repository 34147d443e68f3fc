"""The real keeper of a run's policies over processes that are simulated: candidates that follow the log, die, hang, and will not do.

World._tick ─▶ Keeping.look ─▶ Keeper ─spawn─▶ SimPolicy (the plan's, or restarted) | SimCandidate ─ attach ─▶ SimPolicy
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bus.entry import Draft, Entry, Producer
from bus.events import Event, PolicyAttached, PolicyDetached, PolicyRequested, Value
from bus.host import Host, rebuild
from bus.memory_log import MemoryLog
from bus.snapshot import freeze
from services.config import SupervisorConfig
from services.exit_codes import ENDED, FAILED, FENCED
from services.launcher.keeper import Keeper
from services.launcher.protocol import Handle, RunPlace, ServiceSpec
from services.policy.core import PolicyCore, label_of
from services.policy.newcomer import Newcomer, Overtaken, answer_in_trial
from services.policy.roster import Attachment, Roster, roster_of
from services.policy.shell import Chosen
from tests.simulation.restless import make_policy
from tests.simulation.services import CODE, OTHER_CODE, SimPolicy

if TYPE_CHECKING:
    from tests.simulation.world import World

TICKS_A_SECOND = 20
KILLED = -9
WILL_NOT_DO = "broken"
"""A policy that no candidate can become."""
CONFIG = SupervisorConfig(max_restarts=1000, first_delay_s=0.1, longest_delay_s=0.5, candidate_s=5)
NOWHERE = Path(__file__).parent
Mode = Literal["active", "shadow"]


class SimHandle:
    """A process as its keeper sees it. `code`: its exit, once it has ended."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None: ...

    def kill(self) -> bool:
        self.code = KILLED if self.code is None else self.code
        return True

    def waits_for(self) -> str:
        return ""

    def how_it_ended(self) -> str:
        return f"code {self.code}"


class KeptPolicy(SimPolicy):
    """A policy process: it ends when it is replaced, and a shadow when it was promoted or is to end."""

    def __init__(self, world: World, core: PolicyCore, attached: PolicyAttached, handle: SimHandle) -> None:
        super().__init__(world, core, attached)
        self.handle = handle
        self.attached = attached
        self.hung = False

    @property
    def is_here(self) -> bool:
        """It runs, and can do something."""
        return self.handle.code is None and not self.hung

    def end(self, code: int) -> None:
        """Its process is gone."""
        self.alive = False
        self.handle.code = code if self.handle.code is None else self.handle.code

    def read(self) -> None:
        before = self.position
        super().read()
        for entry in self.world.store.entries[before : self.position]:
            self._look(entry)
            if self.handle.code is not None:
                return

    def _look(self, entry: Entry) -> None:
        label = label_of(self.source)
        match entry.event:
            case PolicyAttached() if entry.source == self.source and entry.epoch > self.epoch:
                self.end(FENCED)
            case PolicyAttached(mode="active") as event if label and event.label == label and event.request > self.attached.request:
                self._detach("promoted")
            case PolicyRequested(action="detach") as event if label and event.label == label:
                self._detach("asked to end")
            case _:
                pass

    def _detach(self, reason: str) -> None:
        assert self.host is not None
        self.host.append_facts([(PolicyDetached(name=self.attached.name, reason=reason), self.position)])
        self.end(ENDED)


class SimCandidate(KeptPolicy):
    """It follows the log without an epoch until it attaches; then it is a policy like any other."""

    def __init__(self, world: World, core: PolicyCore, attached: PolicyAttached, handle: SimHandle) -> None:
        super().__init__(world, core, attached, handle)
        self._anew()

    def _anew(self) -> None:
        attached = self.attached
        self.core = core_of(attached.name, attached.params, attached.mode, attached.label)
        self._newcomer = Newcomer(self.core, answer_in_trial)

    def step(self) -> None:
        """Warms up, follows, settles what it believes to be over, or attaches: sooner or later."""
        random, end = self.random, len(self.world.store.entries)
        if self._newcomer.position == 0 and random.random() < 0.5:
            last = random.randint(0, end)
            entries = self.log.read(0, end)
            decisions = [entry for entry in entries if entry.derived and entry.source == self.core.source]
            self._newcomer.warm_up(entries[:last], decisions, end)
        elif self._newcomer.position < end and random.random() < 0.8:
            self._take(random.randint(1, 9))
        elif random.random() < 0.4:
            self._newcomer.settle(random.randint(0, self._newcomer.position))
        elif random.random() < 0.5:
            self._attach()

    def _take(self, limit: int) -> None:
        try:
            self._newcomer.take(self.log.read(self._newcomer.position, limit))
        except Overtaken:
            self.world.overtaken += 1
            self._anew()

    def _attach(self) -> None:
        if self.attached.name == WILL_NOT_DO:
            self.end(FAILED)
            return
        attached = self.log.attach(self.source, Draft(self.attached, derived=False, cause=0, at=self.world.clock()))
        self.world.announce(self, attached.producer.epoch)
        while self._newcomer.position < attached.position:
            self._take(attached.position - self._newcomer.position)
        self._newcomer.finish()
        self.core = self._newcomer.core
        self.position = attached.position
        self._check()
        self.host = Host(self.core, self.log, attached.producer, self.world.clock)
        self.host.decide(self.position)

    def _check(self) -> None:
        """It has the state that the log up to its PolicyAttached gives."""
        again = core_of(self.attached.name, self.attached.params, self.attached.mode, self.attached.label)
        rebuild(again, self.world.store.entries[: self.position])
        assert freeze(again) == freeze(self.core), f"{self.attached.name} attached at {self.position} with another state than the log gives"


class Keeping:
    """A run's keeper, its processes, and what an operator asks it for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._log = MemoryLog(world.store)
        self.processes: list[KeptPolicy] = []
        self.position = 0
        self._tokens = count(1)
        self._plan = Chosen(world.plan.policy, world.plan.policy_params, "")
        self._keeper = self._new_keeper(Roster())

    def _new_keeper(self, roster: Roster) -> Keeper:
        place = RunPlace("", self._world.plan.run, NOWHERE)
        return Keeper(
            place, self, CONFIG, roster, self._say, self._drain, lambda: self._world.ticks / TICKS_A_SECOND,
            make_token=lambda: f"token {next(self._tokens)}",
        )  # fmt: skip

    @property
    def roster(self) -> Roster:
        """Which policies the run has."""
        return self._keeper.roster

    def begin(self) -> None:
        self._keeper.begin()

    def begin_anew(self) -> None:
        """The keeper dies with all of its processes, and comes back, as when a run is resumed."""
        for process in self.processes:
            process.end(KILLED)
        self._drain()
        self._keeper = self._new_keeper(roster_of(self._world.store.entries))
        self._keeper.begin()

    def look(self) -> None:
        """One turn of the supervisor's loop."""
        for process in self.processes:
            if not process.alive and process.handle.code is None:
                process.handle.code = FAILED
        self._read(5)
        self._keeper.look()
        self.processes = [process for process in self.processes if process.handle.code is None]

    @property
    def has_mail(self) -> bool:
        return self.position < len(self._world.store.entries)

    def ask(self) -> None:
        """An operator asks for something that may or may not be possible."""
        random, shadows = self._world.random, list(self.roster.shadows)
        name = random.choice((*self._world.policies, WILL_NOT_DO))
        former, label = self.roster.former, random.choice([*shadows, "nobody"])
        kind = random.choice(("swap", "swap", "swap", "shadow", "shadow", "promote", "rollback", "detach"))
        match kind:
            case "promote" if label in shadows:
                self._ask(kind, self.roster.shadows[label], label)
            case "rollback" if former is not None:
                self._ask(kind, former)
            case "detach":
                self._request(PolicyRequested(action="detach", label=label))
            case "shadow":
                self._request(PolicyRequested(action="shadow", name=name, label=random.choice(("", "", "mine"))))
            case _:
                self._request(PolicyRequested(action="swap", name=name))

    def _ask(self, kind: Literal["promote", "rollback"], like: Attachment, label: str = "") -> None:
        event = like.event
        self._request(PolicyRequested(action=kind, name=event.name, params=event.params, label=label))

    def _request(self, event: PolicyRequested) -> None:
        self._log.append(Producer("operator", 0), [Draft(event, derived=False, cause=0, at=self._world.clock())])

    # --- what a launcher does ----------------------------------------------------------------------------------------------------

    def spawn(self, spec: ServiceSpec) -> Handle:
        handle = SimHandle()
        chosen = self._chosen(spec.request)
        mode: Mode = "shadow" if spec.name else "active"
        code = OTHER_CODE if self._world.random.random() < self._world.faults.other_code else CODE
        attached = PolicyAttached(
            name=chosen.name, params=dict(chosen.params), mode=mode, code=code, request=spec.request, label=spec.name or chosen.promoted,
            token=spec.token,
        )  # fmt: skip
        kind = SimCandidate if spec.candidate else KeptPolicy
        core = core_of(chosen.name, chosen.params, mode, spec.name)
        process = kind(self._world, core, attached, handle)
        process.after = spec.after
        process.hung = spec.candidate and self._world.random.random() < self._world.faults.engine_hangs
        self.processes.append(process)
        return handle

    def _chosen(self, request: int) -> Chosen:
        if not request:
            return self._plan
        event = self._world.store.entries[request - 1].event
        assert isinstance(event, PolicyRequested)
        return Chosen(event.name, event.params, "", event.label if event.action == "promote" else "")

    # --- the log -----------------------------------------------------------------------------------------------------------------

    def _read(self, limit: int) -> bool:
        entries = self._log.read(self.position, limit)
        for entry in entries:
            self.position = entry.position
            self._keeper.take(entry)
        return bool(entries)

    def _drain(self) -> None:
        while self._read(500):
            pass

    def _say(self, event: Event, cause: int, source: str) -> None:
        self._log.append(Producer("supervisor", 0), [Draft(event, derived=False, cause=cause, at=self._world.clock())])


def core_of(name: str, params: Mapping[str, Value], mode: Mode, label: str) -> PolicyCore:
    """A fresh core; one that will not do is found out before it attaches."""
    return PolicyCore(make_policy("default" if name == WILL_NOT_DO else name, params), mode, label if mode == "shadow" else "")
