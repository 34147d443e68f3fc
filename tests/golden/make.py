"""Makes golden recordings: `python -m tests.golden.make NAME`.

    lending     as_today    both kinds of replicas, swings, kills and restarts of everybody, evaluations, drops, three policies in turn
    starved     as_today    hybrid replicas only, an evaluation by them, prompts that end
    shells      as_today    a real run's recording (--from runs/RUN) without the names of the machine and its folders; the one that is
                            there had its trainer killed, then everybody, and was resumed
    verdict     known_bad   `lending` with one verdict changed and the chain computed anew
    words       words       kinds of events in their present schema, with every field, that no golden recording has yet

first_format in as_today is of the first version that recorded, before there were snapshots; it cannot be made any more.

A golden recording stays what it is: one that is there is not written again. When a core decides otherwise on purpose, move it from
as_today to other_code under another name, and make a new one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bus.entry import Draft, Entry
from bus.events import (
    KINDS,
    EvalDone,
    Event,
    PolicyAttached,
    ReplicaLost,
    RunEnded,
    RunPlanned,
    SampleDropped,
    ServiceStarted,
    SwitchDone,
    SwitchRejected,
    SwitchRequested,
)
from bus.memory_log import MemoryStore
from bus.recording import Recording
from policies.registry import POLICIES
from tests.bus.examples import example_of
from tests.cases.runs import of_kind, small_plan
from tests.golden.files import PACKED, RECORDINGS, golden, pack, record, unpack
from tests.replay.recordings import change_body, forge_chain, of_this_checkout
from tests.simulation.check import run_world
from tests.simulation.plans import Faults
from tests.simulation.world import World

MOST_SEEDS = 500
FOLDER = "/runs"
"""Stands for the folder of the runs in what is taken from a machine."""


def lending() -> MemoryStore:
    plan = small_plan(
        run="lending", total_steps=12, required_samples=3, staleness_threshold=1.0, max_version_lag=1, num_validation=3,
        eval_every_versions=2, eval_before_train=True, hybrid=("h0", "h1"), max_attempts=2,
    )  # fmt: skip
    return _first(lambda seed: World(seed, plan, trouble()), _has_it_all)


def trouble() -> Faults:
    """A little of everything that goes wrong."""
    return Faults(
        crashes=9, crash_chance=0.01, aimed={"RoutesCut": 1, "StepDone": 3, "SwitchStarted": 2, "GenerationRequested": 9},
        reply_lost=0.05, answer_error=0.1, engine_fails=0.02, reward_fails=0.05, filtered=0.1, duplicate=0.05, swap_policy=0.01,
        deadline=0.003, torn_checkpoint=0.1,
    )  # fmt: skip


def starved() -> MemoryStore:
    plan = small_plan(
        run="starved", total_steps=8, standalone=(), num_prompts=11, tail="drop", num_validation=2, eval_every_versions=1,
        policy="static_fully_async",
    )  # fmt: skip
    return _first(lambda seed: World(seed, plan, Faults(answer_error=0.1)), lambda entries: bool(of_kind(entries, EvalDone)))


def words() -> MemoryStore:
    """An example of each kind of event that is missing, emitted by who may; no log of a run."""
    store = MemoryStore("words", log_id="words")
    for kind, version in missing_words():
        event = example_of(KINDS[kind])
        assert version == event.schema_version, f"{kind} of schema {version} can no longer be made: take it from an older version"
        (role, *_) = event.emitted_by() or ("operator",)
        store.write(role, 1, [Draft(event, derived=False, cause=0, at=len(store.entries))])
    return store


def missing_words() -> list[tuple[str, int]]:
    """Kinds and schemas of events that no golden recording of words has."""
    there: set[tuple[str, int]] = set()
    for packed in golden("words"):
        with tempfile.TemporaryDirectory() as scratch, Recording.open(unpack(packed, Path(scratch) / "run")) as recording:
            there |= {(row.kind, row.version) for row in recording.rows()}
    known = [(kind, version) for kind, model in sorted(KINDS.items()) for version in range(1, model.schema_version + 1)]
    return [word for word in known if word not in there]


def shells(folder: Path) -> MemoryStore:
    """The recording in `folder`, without the names of the machine and its folders."""
    with Recording.open(folder) as recording:
        entries = list(recording.entries())
    plan = entries[0].event
    assert isinstance(plan, RunPlanned)
    runs = str(json.loads(plan.config)["folder"])
    environment = {**plan.environment, "cpu": "", "machine": ""}
    store = MemoryStore(plan.run, log_id="shells")
    for entry in entries:
        changes: dict[str, object] = {"host": "host", "pid": 1} if isinstance(entry.event, ServiceStarted) else {}
        changes |= {"environment": environment} if isinstance(entry.event, RunPlanned) else {}
        event = _without(entry.event.model_copy(update=changes), runs)
        store.write(entry.source, entry.epoch, [Draft(event, entry.derived, entry.cause, entry.at)])
    return store


def _without(event: Event, folder: str) -> Event:
    """The event with `folder` replaced wherever a text names it."""
    return type(event).model_validate_json(event.model_dump_json().replace(folder, FOLDER))


def verdict(folder: Path) -> None:
    """One number of a decision is another one than the policy's."""
    with Recording.open(folder) as recording:
        entries = list(recording.entries())
    lends = [entry for entry in entries if isinstance(entry.event, SwitchRequested) and entry.event.target == "rollout"]
    changed = lends[len(lends) // 2]
    assert isinstance(changed.event, SwitchRequested)
    give_back_at = changed.event.give_back_at
    change_body(folder, changed.position, lambda body: body.update(give_back_at=give_back_at + 1))
    forge_chain(folder)


def _first(make: Callable[[int], World], fits: Callable[[Sequence[Entry]], bool]) -> MemoryStore:
    for seed in range(MOST_SEEDS):
        world = make(seed)
        run_world(world)
        if fits(world.store.entries):
            sys.stdout.write(f"seed {seed}, {len(world.store.entries)} entries, {world.crashes} crashes\n")
            store = of_this_checkout(world)
            store.log_id = world.plan.run
            return store
    raise SystemExit(f"none of {MOST_SEEDS} seeds has all that is asked for")


def _has_it_all(entries: Sequence[Entry]) -> bool:
    attached = {event.name for event in of_kind(entries, PolicyAttached)}
    restarted = {entry.source for entry in entries if isinstance(entry.event, ServiceStarted) and entry.epoch > 1}
    return (
        attached == set(POLICIES)
        and restarted >= {"trainer", "rollouter", "controller", "replica:s0", "replica:h1"}
        and {event.reason for event in of_kind(entries, SampleDropped)} >= {"failed", "filtered"}
        and {event.target for event in of_kind(entries, SwitchDone)} == {"rollout", "train"}
        and all(of_kind(entries, kind) for kind in (EvalDone, ReplicaLost, SwitchRejected))
        and [event.reason for event in of_kind(entries, RunEnded)] == ["completed"]
    )


GROUPS = {"lending": "as_today", "starved": "as_today", "shells": "as_today", "verdict": "known_bad", "words": "words"}
MADE: dict[str, Callable[[], MemoryStore]] = {"lending": lending, "starved": starved, "words": words}


def main() -> int:
    """Exit status 1 when there is such a recording already."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=tuple(GROUPS))
    parser.add_argument("--from", dest="folder", type=Path, help="folder of a run that has ended")
    given = parser.parse_args()
    name = f"words{len(golden('words')) + 1}" if given.name == "words" else given.name
    packed = RECORDINGS / GROUPS[given.name] / name
    if (packed / PACKED).exists():
        sys.stderr.write(f"{packed} is there: a golden recording stays as it is; move it to other_code first, under another name\n")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        if given.name == "verdict":
            verdict(unpack(RECORDINGS / "as_today" / "lending", folder))
        else:
            record(shells(given.folder) if given.name == "shells" else MADE[given.name](), folder)
        pack(folder, packed)
    sys.stdout.write(f"{packed}: {(packed / PACKED).stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
