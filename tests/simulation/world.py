"""The world of one seed: processes, their supervisor, the operator, and a scheduler that lets anything happen at any time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from bus.entry import Draft, Producer
from bus.errors import Fenced
from bus.events import (
    CheckpointRequested,
    KillRequested,
    PolicyAttached,
    RebalanceRequested,
    RunEnded,
    RunPlanned,
    ServiceLost,
    SettingChanged,
    StopRequested,
)
from bus.memory_log import MemoryLog, MemoryStore
from services.exit_codes import FENCED
from services.policy.core import PolicyCore
from tests.simulation.deltas import Deltas
from tests.simulation.directs import Directs
from tests.simulation.knobs import Operator
from tests.simulation.log import Crash, FaultyLog
from tests.simulation.making import make_service
from tests.simulation.nodes import Losses, Nodes
from tests.simulation.plans import POLICIES, Faults, draw_faults, draw_plan
from tests.simulation.policies import Keeping, KeptPolicy, SimCandidate
from tests.simulation.replicas import SimReplica
from tests.simulation.restless import make_policy
from tests.simulation.services import CODE, OTHER_CODE, SimController, SimPolicy, SimService

MAX_TICKS = 30_000
MAX_SWAPS = 8
"""Without a bound the operator would keep the run so busy that no deadline ever passes."""
KEEPER_TURNS = 0.2
IDLE_TICKS = 10
"""How far the clock moves where nothing can happen but what is due later."""
Process = SimService | SimReplica
Action = Callable[[], None]


class World:
    """Everything of one simulated run."""

    def __init__(self, seed: int, plan: RunPlanned | None = None, faults: Faults | None = None, losses: Losses | None = None) -> None:
        self.random = Random(seed)
        drawn_plan, drawn_faults = draw_plan(self.random, f"sim-{seed}"), draw_faults(self.random)
        self.plan = plan or drawn_plan
        self.faults = faults or drawn_faults
        self.store = MemoryStore.create(self.plan, at=0)
        self.disk: dict[str, str] = {}
        self.nodes = Nodes(self.plan.run, losses)
        self.deltas = Deltas(self.plan.run)
        self.directs = Directs(self.plan.run)
        self.spans: dict[str, tuple[tuple[int, int], ...]] = {}
        """Payload of an answer, or of a part of one -> its (version, tokens) in order."""
        self.snapshots: dict[tuple[str, str], tuple[int, bytes]] = {}
        """(source, code) -> (position, core) of the newest snapshot."""
        self.ticks = 0
        self.crashes = 0
        self._processes: dict[str, Process] = {}
        self._cut_off: list[Process] = []
        """Those that run on a machine which the cluster has lost."""
        self._dead: dict[str, tuple[int, bool]] = {}
        """Source -> (epoch that died, whether its loss was said)."""
        self._unsaid: dict[tuple[str, int], None] = {}
        """Deaths whose ServiceLost is due."""
        self._epochs: dict[str, int] = {}
        self._restarts: dict[str, int] = {}
        self._supervisor = MemoryLog(self.store)
        self._supervised = 0
        self.policies: tuple[str, ...] = POLICIES
        """Those that an operator may ask for."""
        self.overtaken = 0
        """How often a candidate had to start anew."""
        self.keeping = Keeping(self)
        self._swaps = self._rebalances = 0
        self._resumes = 1
        """How often the keeper may die with all of its policies."""
        self._operator = Operator(seed)

    # --- what processes need -----------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Nanoseconds; moves with the scheduler."""
        return self.ticks * 1_000_000

    def client(self, process: Process) -> FaultyLog:
        """A log client whose owner may die at it."""
        return FaultyLog(self.store, self.random, self.faults.reply_lost, lambda kind, after: self._watch(process, kind, after))

    def announce(self, process: Process, epoch: int) -> None:
        """A process got its epoch."""
        self._epochs[process.source] = epoch

    def _watch(self, process: Process, kind: str, after: bool) -> None:
        if after and kind in self.faults.aimed:
            self.faults.aimed[kind] -= 1
            if self.faults.aimed[kind] == 0:
                self._aim(process)
        if after and self.nodes.strikes_after(kind):
            self._lose_node(self._aimed_node())
            if not process.alive:
                raise Crash
        if self.crashes < self.faults.crashes and self.random.random() < self.faults.crash_chance / 3:
            raise Crash

    def _aim(self, process: Process) -> None:
        """Kills somebody right after an append: the one who made it, or anybody who has not read it yet."""
        victim = self.random.choice([process, *self._everybody()])
        if victim is process:
            raise Crash
        self._die(victim)

    # --- life and death ----------------------------------------------------------------------------------------------------------

    def _aimed_node(self) -> int:
        victim = self._processes.get(self.nodes.losses.victim)
        return victim.node if victim is not None and self.nodes.is_there(victim.node) else self.nodes.victim()

    def _lose_node(self, node: int) -> None:
        """All that is on a machine is lost at this instant; or the cluster only believes so."""
        lives_on = self.nodes.lose(node)
        for process in [process for process in self._everybody() if process.node == node]:
            if lives_on and not isinstance(process, KeptPolicy):
                self._cut_off.append(process)
                self._miss(process)
            else:
                self._die(process)

    def _die(self, process: Process) -> None:
        if not process.alive:
            return
        process.alive = False
        self.crashes += 1
        if isinstance(process, KeptPolicy):
            process.end(1)
        else:
            self._miss(process)

    def _miss(self, process: Process) -> None:
        """It is no more among those that the supervisor looks after."""
        if self._processes.get(process.source) is process:
            del self._processes[process.source]
            epoch = self._epochs.get(process.source, 0)
            self._dead[process.source] = (epoch, False)
            if epoch:
                self._unsaid[process.source, epoch] = None

    def _start(self, process: Process) -> None:
        self._processes[process.source] = process
        self._dead.pop(process.source, None)
        self._guard(process, process.start)

    def _guard(self, process: Process, action: Action) -> None:
        """Runs a step of a process; the process may die in it."""
        try:
            action()
        except Crash:
            self._die(process)
        except Fenced:
            expected = isinstance(process, KeptPolicy) or process in self._cut_off or not process.alive
            assert expected, f"{process.source} was fenced without a successor"
            process.alive = False
            if isinstance(process, KeptPolicy):
                process.end(FENCED)

    def _make(self, source: str) -> Process:
        if source.startswith("replica:"):
            name = source.removeprefix("replica:")
            return SimReplica(self, name, name in self.plan.hybrid)
        code = OTHER_CODE if self.random.random() < self.faults.other_code else CODE
        return make_service(self, source, code, self.random)

    def _restart(self, source: str) -> None:
        self._restarts[source] = self._restarts.get(source, 0) + 1
        self._start(self._make(source))

    def _may_restart(self, source: str) -> bool:
        return not source.startswith("replica:") or self._restarts.get(source, 0) < self.faults.restarts

    def _say_lost(self, source: str, epoch: int) -> None:
        self._unsaid.pop((source, epoch), None)
        current = self._processes.get(source)
        lost = ServiceLost(service=source, epoch=epoch, restarting=current is not None or self._may_restart(source))
        self._supervisor.append(Producer("supervisor", 0), [Draft(lost, derived=False, cause=0, at=self.clock())])

    def _supervise(self) -> None:
        for entry in self._supervisor.read(self._supervised, 5):
            self._supervised = entry.position
            if isinstance(entry.event, KillRequested):
                self._kill(entry.event)

    def _kill(self, event: KillRequested) -> None:
        source = f"replica:{event.replica}"
        process = self._processes.get(source)
        if process is not None and self._epochs.get(source) == event.epoch:
            self._die(process)
            self.crashes -= 1
        self._say_lost(source, event.epoch)

    # --- the operator ------------------------------------------------------------------------------------------------------------

    def watch_by(self, policy: str) -> None:
        """A shadow watches this run, until its end or its death."""
        attached = PolicyAttached(name=policy, params={}, mode="shadow", code=CODE)
        self._start(SimPolicy(self, PolicyCore(make_policy(policy, {}), "shadow"), attached))

    def _operate(self, *events: CheckpointRequested | StopRequested | RebalanceRequested | SettingChanged) -> None:
        self._supervisor.append(Producer("operator", 0), [Draft(event, derived=False, cause=0, at=self.clock()) for event in events])

    # --- the scheduler -----------------------------------------------------------------------------------------------------------

    def run(self, max_ticks: int | None = None, watch: Callable[[int], None] | None = None) -> None:
        """Runs to RunEnded, and on until everybody has read it. Raises AssertionError when it never comes.

        `watch` is told the number of entries every thousand ticks.
        """
        most = MAX_TICKS if max_ticks is None else max_ticks
        sources = ["trainer", "rollouter", "controller", *(f"replica:{name}" for name in self.plan.standalone + self.plan.hybrid)]
        self.random.shuffle(sources)
        for source in sources:
            self._start(self._make(source))
        self.keeping.begin()
        while not isinstance(self.store.entries[-1].event, RunEnded) and not self._has_ended():
            self.ticks += 1
            assert self.ticks < most, f"the run did not end within {most} ticks, at {len(self.store.entries)} entries"
            if watch is not None and self.ticks % 1000 == 0:
                watch(len(self.store.entries))
            self._tick()
        for process in self._everybody():
            if process not in self._cut_off:
                self._guard(process, lambda process=process: self._finish_reading(process))  # type: ignore[misc]

    def _has_ended(self) -> bool:
        return any(isinstance(entry.event, RunEnded) for entry in self.store.entries[-12:])

    def _finish_reading(self, process: Process) -> None:
        while isinstance(process, SimService) and process.host is not None and process.position < len(self.store.entries):
            process.read()

    def _everybody(self) -> list[Process]:
        self._cut_off = [process for process in self._cut_off if process.alive]
        return [*self._processes.values(), *(process for process in self.keeping.processes if process.is_here), *self._cut_off]

    def _tick(self) -> None:
        self._go_wrong()
        actions = self._actions()
        if not actions:
            # Nobody does anything but what a clock makes them do: a keeper that restarts or kills, then a deadline.
            self.ticks += IDLE_TICKS
            self.keeping.look()
            actions = self._actions() or list(self._deadlines())
            assert actions, f"nothing can happen any more, at {len(self.store.entries)} entries"
        process, action = self.random.choice(actions)
        if process is None:
            action()
        else:
            self._guard(process, action)

    def _go_wrong(self) -> None:
        random, faults = self.random, self.faults
        if self.nodes.strikes():
            self._lose_node(self.nodes.victim())
        if self.nodes.asks_for_checkpoint():
            self._operate(CheckpointRequested())
        if self.crashes < faults.crashes and random.random() < faults.crash_chance and self._everybody():
            self._die(random.choice(self._everybody()))
        if self._swaps < MAX_SWAPS and random.random() < self._swap_chance():
            self._swaps += 1
            self.keeping.ask()
        if self._resumes and random.random() < faults.swap_policy / 8:
            self._resumes -= 1
            self.keeping.begin_anew()
        if random.random() < KEEPER_TURNS:
            self.keeping.look()
        if random.random() < faults.stop:
            self._operate(StopRequested(reason="simulated"))
        if self._rebalances < MAX_SWAPS and random.random() < faults.swap_policy / 4:
            self._rebalances += 1
            self._operate(RebalanceRequested())
        turns = [*(self._operator.turns() if faults.knobs else ()), *self._operator.due(self.store.entries, faults.set_after)]
        if turns:
            self._operate(*turns)
        if faults.deadline and random.random() < faults.deadline:
            deadlines = self._deadlines()
            if deadlines:
                process, action = random.choice(deadlines)
                self._guard(process, action)

    def _swap_chance(self) -> float:
        """Swaps are aimed at open boundaries: right after what opens one."""
        opens = self.store.entries[-1].event.kind in ("StepDone", "BoundaryOpened", "WeightsPublished")
        return self.faults.swap_policy * (5 if opens else 1)

    def _actions(self) -> list[tuple[Process | None, Action]]:
        found: list[tuple[Process | None, Action]] = []
        end = len(self.store.entries)
        for process in self._everybody():
            if isinstance(process, SimReplica):
                found += [(process, action) for action in self._replica_actions(process)]
            elif isinstance(process, KeptPolicy) and process.host is None:
                found += [(process, process.step if isinstance(process, SimCandidate) else process.start)] * 3
            elif process.host is not None:
                if process.position < end:
                    found += [(process, process.read)] * 3
                found += [(process, lambda p=process, r=request: p.perform(r)) for request in process.to_do()]  # type: ignore[misc]
        if self._supervised < end:
            found.append((None, self._supervise))
        found += [(None, lambda key=key: self._say_lost(*key)) for key in self._unsaid]  # type: ignore[misc]
        for source in self._dead:
            said = (source, self._dead[source][0]) not in self._unsaid
            if (said or self.faults.unsupervised) and self._may_restart(source) and self.nodes.has_room():
                found.append((None, lambda source=source: self._restart(source)))  # type: ignore[misc]
        if self.nodes.can_grow():
            found.append((None, self.nodes.grow))
        found += [(None, lambda p=process: self._die(p)) for process in self._cut_off]  # type: ignore[misc]
        return found

    def _replica_actions(self, replica: SimReplica) -> list[Action]:
        if replica.hung or replica.producer is None:
            return []
        if replica.state == "starting":
            return [replica.add]
        actions: list[Action] = [replica.read] * 2 if replica.has_mail() else []
        return [*actions, replica.finish_one] if replica.can_finish() else actions

    def _deadlines(self) -> list[tuple[Process, Action]]:
        controller = self._processes.get("controller")
        if not isinstance(controller, SimController) or controller.host is None:
            return []
        return [
            (controller, lambda c=controller, d=deadline: c.miss(d.key, d.seconds))  # type: ignore[misc]
            for deadline in controller.core.deadlines()
        ]
