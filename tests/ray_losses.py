"""Runs on the three nodes that lose some of them: what they have in common, and what must hold at their end.

a, the head: policy, archiver, s1        b: trainer, h0        c: s0        rollouter, controller: as a test wants it
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from bus.entry import Entry
from bus.events import (
    AbortRequested,
    BatchFormed,
    CutRoutesRequested,
    DevicesReloaded,
    DevicesYielded,
    Event,
    GenerationFinished,
    GenerationRequested,
    OpenRoutesRequested,
    RedoDiverged,
    ReloadRequested,
    ReplicaAsleep,
    ReplicaAwake,
    ReplicaLost,
    RoutesCut,
    RoutesOpened,
    RunEnded,
    ServiceLost,
    ServiceStarted,
    SleepRequested,
    StepDone,
    SwitchDone,
    SwitchStarted,
    WakeRequested,
    YieldRequested,
)
from replay.ledger import Ledger
from services.launcher.folders import remove_shm_folder
from tests.clusters import RayRun, ThreeNodes, run_on
from tests.serving import PATIENCE_S, is_alive

SEATS = {
    "trainer": "b",
    "replica:h0": "b",
    "replica:s0": "c",
    "replica:s1": "a",
    "rollouter": "a",
    "controller": "a",
    "archiver": "a",
    "policy": "a",
}
Phase = Callable[[Event], bool]


def of_kind(kind: type[Event]) -> Phase:
    """Any of a kind."""
    return lambda event: isinstance(event, kind)


PHASES: Mapping[str, Phase] = {
    "lend: SwitchStarted": lambda event: isinstance(event, SwitchStarted) and event.target == "rollout",
    "lend: YieldRequested": of_kind(YieldRequested),
    "lend: DevicesYielded": of_kind(DevicesYielded),
    "lend: WakeRequested": of_kind(WakeRequested),
    "lend: ReplicaAwake": of_kind(ReplicaAwake),
    "lend: OpenRoutesRequested": of_kind(OpenRoutesRequested),
    "lend: RoutesOpened": of_kind(RoutesOpened),
    "lend: SwitchDone": lambda event: isinstance(event, SwitchDone) and event.target == "rollout",
    "back: SwitchStarted": lambda event: isinstance(event, SwitchStarted) and event.target == "train",
    "back: CutRoutesRequested": of_kind(CutRoutesRequested),
    "back: RoutesCut": of_kind(RoutesCut),
    "back: AbortRequested": lambda event: isinstance(event, AbortRequested) and event.reason == "swing",
    "back: SleepRequested": of_kind(SleepRequested),
    "back: ReplicaAsleep": of_kind(ReplicaAsleep),
    "back: ReloadRequested": of_kind(ReloadRequested),
    "back: DevicesReloaded": of_kind(DevicesReloaded),
    "back: SwitchDone": lambda event: isinstance(event, SwitchDone) and event.target == "train",
}
"""Of a swing, in order."""
POLICY = """
from policies.base import PolicyBase, lend


class Always(PolicyBase):
    def verdict(self, view):
        return lend(3 * view.shape.cycle_samples // 4, "always")
"""
"""Lends at every boundary, however much a swing has cost."""
_COMMON = """
policy: {name: 'POLICY:Always'}
supervisor: {max_restarts: 100, first_delay_s: 0.1, longest_delay_s: 0.5}
cluster: {cpus: {rank: 0.5, replica: 0.25}, resources: SEATS}
"""
TRAINING = f"""
model:
  path: builtin
  shape: {{hidden_size: 32, intermediate_size: 64, num_layers: 1, num_heads: 2, num_kv_heads: 1}}
  warm_start: {{steps: 3}}
data: {{task: sorting, seed: 3}}
rollout: {{n: 4, max_running_requests: 16}}
replicas: {{standalone: 2, hybrid: 1}}
actor: {{lr: 1.0e-3}}
async_training: {{ppo_mini_batch_size: 4, trigger_parameter_sync_step: 2, total_steps: STEPS}}
{_COMMON}"""
"""A tiny model that really trains."""
SCRIPTED = f"""
model: {{path: scripted}}
data: {{task: sorting, seed: 3}}
rollout: {{engine: scripted, n: 2, max_running_requests: 4}}
replicas: {{standalone: 2, hybrid: 1}}
scripted: {{seconds_per_step: 0.1, tokens_per_second: 25, shortest_answer: 4, longest_answer: 24, wake_s: 0.4, sleep_s: 0.4}}
async_training: {{ppo_mini_batch_size: 4, trigger_parameter_sync_step: 2, total_steps: STEPS}}
{_COMMON}"""


def in_phase(name: str) -> Callable[[Entry], bool]:
    """Whether an entry is that of a phase."""
    return lambda entry: PHASES[name](entry.event)


def write_config(folder: Path, config: str, steps: int, seats: Mapping[str, str]) -> Path:
    """A run whose services are bound to nodes by the names of these."""
    resources = ", ".join(f"'{service}': {{{node}: 1}}" for service, node in {**SEATS, **seats}.items() if node)
    policy, path = folder / "always.py", folder / "losses.yaml"
    policy.write_text(POLICY)
    path.write_text(config.replace("STEPS", str(steps)).replace("SEATS", f"{{{resources}}}").replace("POLICY", str(policy)))
    return path


@contextmanager
def running(
    cluster: ThreeNodes,
    url: str,
    run: str,
    folder: Path,
    steps: int,
    seats: Mapping[str, str] = MappingProxyType({}),
    strategy: str = "pack",
    deadlines: str = "{}",
    config: str = SCRIPTED,
) -> Iterator[RayRun]:
    """A run of so many steps. `seats`: service -> the node it is bound to, where that is another than usual; empty: none."""
    try:
        path = write_config(folder, config, steps, seats)
        with run_on(cluster, path, url, run, folder, f"cluster.strategy={strategy}", f"deadlines={deadlines}") as process:
            yield process
    finally:
        # Nodes that were lost could not remove it, and all of them have this machine's memory.
        remove_shm_folder(run)


def check_whole(entries: Sequence[Entry], steps: int | None = None) -> None:
    """Every step was done once, no sample was trained twice, the books balance, and the redo came to the weights that were published.

    `steps`: that it was to do; None: it was stopped.
    """
    done = [entry.event.step for entry in entries if isinstance(entry.event, StepDone)]
    assert done == list(range(1, (steps or len(done)) + 1)), done
    trained = [sample for entry in entries if isinstance(entry.event, BatchFormed) for sample in entry.event.samples]
    assert len(trained) == len(set(trained)), "a sample was trained twice"
    assert not [entry for entry in entries if isinstance(entry.event, RedoDiverged)]
    assert [entry.event.reason for entry in entries if isinstance(entry.event, RunEnded)] == ["completed" if steps else "stopped"]
    ledger = Ledger()
    for entry in entries:
        ledger.apply(entry)
    assert ledger.balanced, [str(fault) for fault in ledger.faults]


def until_back(process: RayRun, services: Collection[str]) -> None:
    """Reads on until the loss of each of these has been said, it is there again, and a step was done after that."""
    unsaid, away = set(services), set(services)
    for entry in process.follow():
        event = entry.event
        if isinstance(event, ServiceLost):
            unsaid.discard(event.service)
        elif isinstance(event, ServiceStarted) and entry.source not in unsaid:
            away.discard(entry.source)
        elif isinstance(event, StepDone) and not away:
            return
    raise AssertionError(f"the run ended while these were not back: {away}")


def lost_services(entries: Sequence[Entry]) -> list[str]:
    """Whose loss was said, in order."""
    return [entry.event.service for entry in entries if isinstance(entry.event, ServiceLost)]


def reissued(entries: Sequence[Entry]) -> int:
    """Requests that were lost with their replica and asked for again; fails for one that was not."""
    gone = {(entry.event.replica, entry.event.epoch): entry.position for entry in entries if isinstance(entry.event, ReplicaLost)}
    finished = {(entry.event.request, entry.event.attempt) for entry in entries if isinstance(entry.event, GenerationFinished)}
    requests = [(entry.position, entry.event) for entry in entries if isinstance(entry.event, GenerationRequested)]
    count = 0
    for position, event in requests:
        lost = gone.get((event.replica, event.epoch), 0)
        if position < lost and (event.request, event.attempt) not in finished:
            assert any(other.request == event.request and other.attempt > event.attempt for _, other in requests), event
            count += 1
    return count


def pid_of(process: RayRun, source: str) -> int:
    """Of its newest incarnation."""
    return [entry.event.pid for entry in process.entries if isinstance(entry.event, ServiceStarted) and entry.source == source][-1]


def parent_of(pid: int) -> int:
    """Whoever has started a process."""
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def wait_until_gone(pids: Sequence[int]) -> None:
    """Until all of these processes have ended."""
    give_up = time.monotonic() + PATIENCE_S
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < give_up, f"still there: {left}"
        time.sleep(0.1)
