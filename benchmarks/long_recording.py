"""A long recording to measure with: the real cores on the in-memory log, with scripted replicas and a scripted learner.

Run it with `python -m benchmarks.long_recording FOLDER --entries 100000`; plan and mix of entries are those of examples/demo.yaml. There
are no payloads and no weights in it, and its times are those of the simulation's scheduler.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from bus.entry import Draft
from bus.events import PolicyAttached, RunPlanned, ServiceStarted
from bus.memory_log import MemoryStore
from bus.recorder import Recorder
from replay.recorded import SUMMARY
from replay.subjects import subjects
from tests.simulation.plans import Faults
from tests.simulation.world import World

ENTRIES_A_STEP = 292
"""Of this plan: 16 samples with 8 requests and answers each, and a few of everything else."""
TICKS_AN_ENTRY = 10
BATCH = 10_000
"""Entries recorded in one transaction."""


def long_plan(num_entries: int) -> RunPlanned:
    """The plan of examples/demo.yaml, as many steps long as give about `num_entries`."""
    return RunPlanned(
        run="long", seed=0, total_steps=max(1, num_entries // ENTRIES_A_STEP), required_samples=16, trigger_parameter_sync_step=8,
        staleness_threshold=0.5, rollout_n=8, max_prompt_length=16, max_response_length=32, standalone=("s0",), hybrid=("h0",),
        max_running_requests=16, checkpoint_every_versions=5, policy="default", policy_params={"deactivate_ratio": 0.6},
    )  # fmt: skip


def simulate(num_entries: int, seed: int = 0) -> MemoryStore:
    """A finished run of about that many entries, written by this checkout's code."""
    world = World(seed, long_plan(num_entries), Faults())
    codes = {subject.source: subject.code for subject in subjects()}
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("simulating", total=num_entries)
        world.run(TICKS_AN_ENTRY * num_entries, lambda count: progress.update(task, completed=count))
    store = MemoryStore(world.store.run)
    for _, source, epoch, derived, cause, at, _, event in world.store.entries:
        if source in codes and isinstance(event, ServiceStarted | PolicyAttached):
            event = event.model_copy(update={"code": codes[source](event if isinstance(event, PolicyAttached) else None)})
        store.write(source, epoch, [Draft(event, derived, cause, at)])
    return store


def record(folder: Path, store: MemoryStore) -> None:
    """Writes a recording of it, with the summary that knows its last link."""
    with Recorder.open(folder, store.run, store.log_id) as recorder:
        for start in range(0, len(store.entries), BATCH):
            recorder.append(store.entries[start : start + BATCH])
        (folder / SUMMARY).write_text(json.dumps({"last_chain": recorder.last_chain}))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    store = simulate(options.entries, options.seed)
    record(options.folder, store)
    print(f"{options.folder}: {len(store.entries)} entries")


if __name__ == "__main__":
    main(sys.argv[1:])
