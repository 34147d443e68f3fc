"""Snapshots of a live service: put away when all that is in them is in the log, copied when it is recorded, and of use to its successor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bus.entry import Entry
from bus.events import ServiceStarted
from bus.history import History
from bus.host import rebuild_in_order
from bus.memory_log import MemoryLog, MemoryStore
from bus.recording import Row
from bus.redis_snapshots import RedisSnapshots
from bus.snapshot import freeze
from bus.snapshot_table import Snapshot, SnapshotTable
from services.archiver.snapshot_copies import EVERY_S, SMALL_BYTES, SnapshotCopies
from services.config_file import make_config
from services.context import ServiceContext, make_context
from services.controller.core import ControllerCore
from services.launcher.protocol import RunPlace, ServiceSpec
from services.plan import plan_run
from services.snapshots import Snapshots
from tests.replay.recordings import save, simulated_with

EVERY = 30
SETTINGS = {
    "model": {"path": "scripted"}, "rollout": {"engine": "scripted"}, "devices": "unpinned", "async_training": {"total_steps": 9},
}  # fmt: skip


class Service:
    """A controller that takes a simulated log a few entries at a time, as its shell does."""

    def __init__(self, context: ServiceContext, store: MemoryStore, code: str = "code", every: int = EVERY) -> None:
        self.core = ControllerCore()
        self.entries = store.entries
        self.log = MemoryLog(store)
        self.snapshots = Snapshots(context, self.core.source, code, every)
        self.snapshots.begin(epoch=1, position=0)
        self.position = 0
        self.decided_at: dict[str, int] = {}

    def restore(self, before: int | None = None) -> Snapshot | None:
        found = self.snapshots.restore(self.core, History(self.log, None), before or len(self.entries) + 1)
        self.position = 0 if found is None else found.position
        return found

    def take(self, to: int, step: int = 7) -> None:
        """On to entry `to`; the decisions on what was taken are in the log."""
        while self.position < to:
            end = min(to, self.position + step)
            decisions = [entry for entry in self.entries if is_own(entry) and self.position < entry.cause <= end]
            rebuild_in_order(self.core, self.entries[self.position : end], decisions, self.position)
            self.decided_at.update((entry.event.kind, entry.position) for entry in decisions)
            self.snapshots.look(self.core, self.entries[self.position : end], self.decided_at)
            self.position = end


def is_own(entry: Entry) -> bool:
    return entry.derived and entry.source == "controller"


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    """Of a run without crashes, before its end."""
    world = simulated_with("SwitchDone", "WaitSamples", "CheckpointSaved", crashes=False)
    store = MemoryStore(world.store.run)
    store.entries = world.store.entries[:-12]
    return store


@pytest.fixture
def context(redis_url: str, run: str, tmp_path: Path) -> ServiceContext:
    place = RunPlace(redis_url, run, tmp_path / "run")
    return make_context(place, ServiceSpec("controller"), plan_run(make_config(SETTINGS, "test"), run), "code")


@pytest.fixture
def server(context: ServiceContext) -> Iterator[RedisSnapshots]:
    snapshots = RedisSnapshots(context.url, context.run)
    yield snapshots
    snapshots.close()


def last(server: RedisSnapshots) -> Snapshot:
    found = server.get("controller")
    assert found is not None
    return found


def test_a_successor_goes_on_from_the_newest_one_as_if_it_had_read_everything(context: ServiceContext, store: MemoryStore) -> None:
    first, successor = Service(context, store), Service(context, store)
    first.take(len(store.entries))
    found = successor.restore()
    assert found is not None
    assert len(store.entries) - 2 * EVERY < found.position < len(store.entries)
    assert found.decided_at == {
        entry.event.kind: entry.position for entry in store.entries if is_own(entry) and entry.cause <= found.position
    }
    successor.take(len(store.entries))
    assert freeze(successor.core) == freeze(first.core)


def test_one_is_put_away_when_the_decisions_in_it_have_been_read_back(
    context: ServiceContext, store: MemoryStore, server: RedisSnapshots
) -> None:
    late = next(entry for entry in store.entries if is_own(entry) and entry.position > entry.cause + 2 and entry.cause > EVERY)
    service = Service(context, store, every=late.cause)
    service.take(late.cause, step=late.cause)
    assert server.get("controller") is None
    service.take(late.position, step=1)
    assert (last(server).position, last(server).through) == (late.cause, service.position)
    assert last(server).chain == store.entries[service.position - 1].chain


def test_one_whose_decisions_the_log_has_lost_is_not_used(context: ServiceContext, store: MemoryStore, server: RedisSnapshots) -> None:
    """The server came back with less, and the successor's log goes on differently."""
    Service(context, store).take(len(store.entries))
    found = last(server)
    shorter = MemoryStore(store.run)
    shorter.entries = store.entries[: found.through - 1]
    assert Service(context, shorter).restore() is None
    shorter.entries = [*shorter.entries, store.entries[found.through - 1]._replace(chain="another"), *store.entries[found.through :]]
    assert Service(context, shorter).restore() is None
    assert Service(context, store).restore() == found


def test_one_of_other_code_or_of_what_comes_later_or_a_broken_one_is_not_used(
    context: ServiceContext, store: MemoryStore, server: RedisSnapshots
) -> None:
    Service(context, store).take(len(store.entries))
    found = last(server)
    assert Service(context, store, code="other").restore() is None
    assert Service(context, store).restore(before=found.through) is None
    server.put(replace(found, core=found.core[:100]))
    service = Service(context, store)
    assert service.restore() is None
    assert freeze(service.core) == freeze(ControllerCore())
    server.put(replace(found, decided_at=None))
    assert Service(context, store).restore() is None, "made by a replay, it does not know what the host must know"


def test_where_the_server_has_none_that_of_the_recording_is_used(
    context: ServiceContext, store: MemoryStore, server: RedisSnapshots
) -> None:
    Service(context, store).take(len(store.entries))
    found = last(server)
    save(context.folder, store)
    with SnapshotTable.open(context.folder) as table:
        table.put([found])
    server.put(replace(found, code="other"))
    assert Service(context, store).restore() == found


def test_one_that_was_replaced_keeps_no_more(context: ServiceContext, store: MemoryStore, server: RedisSnapshots) -> None:
    service = Service(context, store)
    service.take(EVERY)
    newcomer = store.entries[EVERY]._replace(source="controller", epoch=2, event=ServiceStarted(code=""), derived=False)
    service.snapshots.look(service.core, [newcomer], {})
    before = server.get("controller")
    service.position += 1
    service.take(len(store.entries))
    assert server.get("controller") == before


def test_a_state_that_cannot_be_frozen_and_a_server_that_is_away_are_in_no_ones_way(
    context: ServiceContext, store: MemoryStore, server: RedisSnapshots, tmp_path: Path
) -> None:
    service = Service(context, store)
    service.core.lock = {1, 2}  # type: ignore[attr-defined]
    service.take(len(store.entries))
    assert server.get("controller") is None
    nowhere = replace(context.place, url=f"unix://{tmp_path}/nobody.sock")
    alone = Service(replace(context, place=nowhere), store)
    assert alone.restore() is None
    alone.take(len(store.entries))


# --- the archiver ------------------------------------------------------------------------------------------------------------------


def rows(store: MemoryStore, last: int) -> list[Row]:
    return [Row.of(entry) for entry in store.entries[:last]]


def kept(folder: Path) -> int | None:
    with SnapshotTable.open(folder) as table:
        return table.position_before("controller", "code", 10_000)


def test_one_is_copied_once_all_that_is_in_it_is_recorded(context: ServiceContext, store: MemoryStore, server: RedisSnapshots) -> None:
    Service(context, store).take(len(store.entries))
    found, now = last(server), [0.0]
    save(context.folder, store)
    with SnapshotCopies(RedisSnapshots(context.url, context.run), context.folder, lambda: now[0]) as copies:
        for at, recorded in ((2 * EVERY_S, found.through - 1), (2.5 * EVERY_S, found.through)):
            now[0] = at
            copies.take(rows(store, recorded))
            assert kept(context.folder) is None
        now[0] = 4 * EVERY_S
        copies.take(())
        assert kept(context.folder) == found.position


def test_what_is_left_is_copied_at_the_end(context: ServiceContext, store: MemoryStore, server: RedisSnapshots) -> None:
    Service(context, store).take(len(store.entries))
    save(context.folder, store)
    with SnapshotCopies(RedisSnapshots(context.url, context.run), context.folder, lambda: 0.0) as copies:
        copies.take(rows(store, len(store.entries)))
        assert kept(context.folder) is None
    assert kept(context.folder) == last(server).position


def test_a_large_one_is_fetched_again_once_its_size_changes(context: ServiceContext, store: MemoryStore, server: RedisSnapshots) -> None:
    random, now, seen = Random(1), [0.0], []
    save(context.folder, store)
    with SnapshotCopies(RedisSnapshots(context.url, context.run), context.folder, lambda: now[0]) as copies:
        for position, num_bytes in ((3, 2 * SMALL_BYTES), (4, 2 * SMALL_BYTES), (5, 3 * SMALL_BYTES)):
            server.put(Snapshot("controller", "code", position, position, "chain", random.randbytes(num_bytes)))
            now[0] += 2 * EVERY_S
            copies.take(rows(store, len(store.entries)))
            seen.append(kept(context.folder))
    assert seen == [3, 3, 5]


def test_a_recording_that_takes_none_and_a_server_that_is_away_do_not_end_the_archiver(
    context: ServiceContext, store: MemoryStore, tmp_path: Path
) -> None:
    Service(context, store).take(len(store.entries))
    (tmp_path / "events.sqlite").write_bytes(b"x" * 5000)
    for url, folder in ((context.url, tmp_path), (f"unix://{tmp_path}/nobody.sock", tmp_path)):
        with SnapshotCopies(RedisSnapshots(url, context.run), folder, lambda: 0.0) as copies:
            copies.take(rows(store, len(store.entries)))
