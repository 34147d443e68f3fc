"""What deciding costs with many replicas: processor time of the services' cores, without a server.

    python -m benchmarks.scale_cores [8 32 1000]

Replicas with 64 requests each in flight; then answers end one after the other, and the rollouter decides what follows. The last line is one
JSON object: for each number of replicas, microseconds an entry, milliseconds for a look at the deadlines, seconds for a snapshot.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from benchmarks.scale_load import RUN, Load
from bus.core import Core
from bus.entry import Entry
from bus.events import (
    BlobRef,
    Event,
    GenerationFinished,
    GenerationRequested,
    ReplicaAdded,
    RunPlanned,
    SampleReady,
    SampleStarted,
    ServiceStarted,
    WeightsApplied,
    WeightsPublished,
)
from bus.host import decide_all
from bus.snapshot import freeze
from policies.registry import create
from services.config_file import make_config
from services.controller.core import ControllerCore
from services.plan import plan_run
from services.policy.core import PolicyCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore

FINISHED = 4_000
LOOKS = 20


class Story:
    """A log that grows by what happens, and by what the rollouter decides on it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.rollouter = RollouterCore()
        self.entries: list[Entry] = []
        self.seconds = 0.0
        """The rollouter's."""
        self._flight: deque[GenerationRequested] = deque()
        self._left: dict[int, int] = {}

    def tell(self, source: str, event: Event, derived: bool = False) -> Entry:
        entry = Entry(len(self.entries) + 1, source, 1, derived, len(self.entries), 0, "", event)
        self.entries.append(entry)
        return entry

    def fill(self) -> None:
        """Every slot of every replica is taken."""
        load = self._load
        facts: list[tuple[str, Event]] = [("supervisor", planned(load))]
        facts += [(source, ServiceStarted(code="")) for source in ("trainer", "rollouter", "controller")]
        weights = WeightsPublished(version=0, revision=0, transport="file", uri="f", digest="d", num_bytes=1, seconds=0.0)
        facts.append(("trainer", weights))
        for name in load.names:
            source = f"replica:{name}"
            facts.append((source, ServiceStarted(code="", role="standalone")))
            facts.append((source, ReplicaAdded(replica=name, role="standalone", slots=load.slots, seconds=0.0)))
            facts.append((source, WeightsApplied(replica=name, version=0, revision=0, seconds=0.0)))
        for source, fact in facts:
            self.rollouter.apply(self.tell(source, fact))
        count = load.replicas * load.slots // load.answers
        for sample in range(count):
            self._decided(SampleStarted(sample=sample, version=0))
            for answer in range(load.answers):
                name = load.names[(sample * load.answers + answer) % load.replicas]
                self._decided(
                    GenerationRequested(
                        request=f"{sample}.{answer}", attempt=1, replica=name, epoch=1, swing=0, sample=sample, answer=answer,
                        max_new_tokens=load.longest,
                    )
                )  # fmt: skip

    def _decided(self, event: Event) -> None:
        self._note(event)
        self.rollouter.apply(self.tell("rollouter", event, derived=True))

    def _note(self, event: Event) -> None:
        if isinstance(event, GenerationRequested):
            self._flight.append(event)

    def finish_one(self) -> None:
        """The oldest answer ends; with the last one of a sample that is ready."""
        request = self._flight.popleft()
        blob = BlobRef(name="answer", num_bytes=1, digest="0" * 32)
        finished = GenerationFinished(
            request=request.request, attempt=1, replica=request.replica, outcome="stop", num_tokens=9, version_spans=((0, 9),), blob=blob
        )
        self._decide_on(self.tell(f"replica:{request.replica}", finished))
        left = self._left[request.sample] = self._left.get(request.sample, self._load.answers) - 1
        if not left:
            ready = SampleReady(sample=request.sample, num_tokens=9, oldest_version=0, newest_version=0, mean_reward=0.5, blob=blob)
            self._decide_on(self.tell("rollouter", ready))

    def _decide_on(self, entry: Entry) -> None:
        began = time.process_time()
        self.rollouter.apply(entry)
        decisions = decide_all(self.rollouter, entry.position)
        self.seconds += time.process_time() - began
        for event in decisions:
            self._note(event)
            self.tell("rollouter", event, derived=True)


def planned(load: Load) -> RunPlanned:
    """As many samples may be outstanding as there are slots for, and more."""
    settings = {
        "model": {"path": "scripted"}, "rollout": {"engine": "scripted", "n": load.answers}, "devices": "unpinned",
        "async_training": {"total_steps": 10**6, "ppo_mini_batch_size": load.replicas * load.slots, "staleness_threshold": 1.0},
    }  # fmt: skip
    return plan_run(make_config(settings, "the benchmark"), RUN).model_copy(update={"standalone": load.names, "hybrid": ()})


def measure(replicas: int) -> dict[str, float]:
    """Of so many replicas."""
    story = Story(Load(replicas=replicas))
    story.fill()
    filled = len(story.entries)
    for _ in range(FINISHED):
        story.finish_one()
    later = story.entries[filled:]
    found = {"rollouter_us": 1e6 * story.seconds / len(later), "rollouter_snapshot_s": spent(lambda: freeze(story.rollouter))}
    cores: dict[str, Core] = {"controller": ControllerCore(), "trainer": TrainerCore(), "policy": PolicyCore(create("default", {}))}
    for name, core in cores.items():
        follow(core, story.entries[:filled])
        found[f"{name}_us"] = 1e6 * spent(lambda core=core: follow(core, later)) / len(later)  # type: ignore[misc]
    controller = cores["controller"]
    found["deadlines_ms"] = 1e3 * spent(lambda: [controller.deadlines() for _ in range(LOOKS)]) / LOOKS
    return {name: round(value, 3) for name, value in found.items()}


def follow(core: Core, entries: Sequence[Entry]) -> None:
    for entry in entries:
        core.apply(entry)
        decide_all(core, entry.position)


def spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main(arguments: Sequence[str]) -> None:
    found = {}
    for replicas in map(int, arguments or ("8", "32", "1000")):
        found[replicas] = measure(replicas)
        print(f"{replicas:>6} replicas  " + "  ".join(f"{name} {value:g}" for name, value in found[replicas].items()), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
