"""Recordings of simulated runs, and hands that tamper with them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import msgpack

from bus import chain
from bus.blobs import blob_ref
from bus.entry import Draft, Entry
from bus.events import BlobRef, GenerationFinished, GenerationRequested, PolicyAttached, SampleReady, ServiceStarted
from bus.memory_log import MemoryStore
from bus.payload_recording import PayloadRecorder
from bus.recorder import Recorder
from bus.recording import FILE_NAME, Recording
from policies.registry import POLICIES
from replay.differences import Report
from replay.recorded import SUMMARY, verify_recording
from replay.subjects import subjects
from tests.simulation.check import subjects_of
from tests.simulation.services import CODE
from tests.simulation.world import World

Body = dict[str, object]


def simulated(seed: int) -> World:
    """A finished run."""
    world = World(seed)
    world.run()
    return world


def simulated_with(*kinds: str, crashes: bool) -> World:
    """The first finished run that has entries of all these kinds, built-in policies, and in every incarnation the code of this checkout."""
    for seed in range(1000):
        world = simulated(seed)
        starts = [entry.event for entry in world.store.entries if isinstance(entry.event, ServiceStarted | PolicyAttached)]
        same_code = all(event.code in ("", CODE) for event in starts)
        known = all(event.name in POLICIES for event in starts if isinstance(event, PolicyAttached))
        if same_code and known and (world.crashes > 0) == crashes and all(positions(world.store.entries, kind) for kind in kinds):
            return world
    raise AssertionError(f"no simulated run has {kinds}")


def save(folder: Path, store: MemoryStore, with_summary: bool = True) -> Path:
    """Records a run in `folder`, as `swingshift run` leaves it."""
    with Recorder.open(folder, store.run, store.log_id) as recorder:
        recorder.append(store.entries)
        if with_summary:
            (folder / SUMMARY).write_text(json.dumps({"last_chain": recorder.last_chain}))
    return folder


def check(folder: Path) -> Report:
    """Verifies a recording of a simulated run."""
    return verify_recording(folder, subjects_of)


def execute(folder: Path, statement: str, *values: object) -> None:
    """What anybody with SQL can do."""
    connection = sqlite3.connect(folder / FILE_NAME)
    with connection:
        connection.execute(statement, values)
    connection.close()


def change_body(folder: Path, position: int, change: Callable[[Body], None]) -> None:
    """Changes fields of the event at `position`."""
    with Recording.open(folder) as recording:
        (row,) = recording.rows(position, position)
    body = msgpack.unpackb(row.body)
    change(body)
    execute(folder, "UPDATE entries SET body = ? WHERE position = ?", msgpack.packb(body), position)


def forge_chain(folder: Path) -> None:
    """Computes the chain anew from end to end, and puts it where the summary and the recorder have theirs."""
    links = [(chain.GENESIS, 0)]
    with Recording.open(folder) as recording:
        for row in recording.rows():
            links.append((row.link(links[-1][0]), row.position))
    previous = links[-1][0]
    connection = sqlite3.connect(folder / FILE_NAME)
    with connection:
        connection.executemany("UPDATE entries SET chain = ? WHERE position = ?", links)
        connection.execute("UPDATE meta SET value = ? WHERE key = 'last_chain'", (previous,))
    connection.close()
    (folder / SUMMARY).write_text(json.dumps({"last_chain": previous}))


def positions(entries: Sequence[Entry], *kinds: str) -> list[int]:
    """Where entries of these kinds are."""
    return [entry.position for entry in entries if entry.event.kind in kinds]


def with_payloads(folder: Path, world: World) -> MemoryStore:
    """The same log, naming payloads that are recorded in `folder`."""
    refs: dict[str, BlobRef] = {}

    def named(blob: BlobRef | None) -> BlobRef | None:
        return None if blob is None else refs.setdefault(blob.name, blob_ref(blob.name, payload(blob.name)))

    store = MemoryStore(world.store.run)
    for _, source, epoch, derived, cause, at, _, event in world.store.entries:
        if isinstance(event, GenerationFinished | SampleReady):
            event = event.model_copy(update={"blob": named(event.blob)})
        elif isinstance(event, GenerationRequested):
            event = event.model_copy(update={"prefix": named(event.prefix)})
        store.write(source, epoch, [Draft(event, derived, cause, at)])
    with PayloadRecorder.open(folder) as payloads:
        payloads.put({name: payload(name) for name in refs})
    return store


def payload(name: str) -> bytes:
    """What lies under `name`."""
    return f"payload {name}".encode() * 10


def of_this_checkout(world: World) -> MemoryStore:
    """The same log, as if this checkout's code had written it."""
    store = MemoryStore(world.store.run)
    codes = {subject.source: subject.code for subject in subjects()}
    for position, source, epoch, derived, cause, at, _, event in world.store.entries:
        if isinstance(event, ServiceStarted | PolicyAttached) and event.code == CODE:
            event = event.model_copy(update={"code": codes[source](event if isinstance(event, PolicyAttached) else None)})
        assert store.write(source, epoch, [Draft(event, derived, cause, at)]) == position
    return store
