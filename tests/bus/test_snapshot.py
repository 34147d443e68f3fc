"""A frozen core goes on as if nothing had happened; what cannot be frozen, or is broken, is named."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import msgpack
import pytest

from bus.core import Core
from bus.entry import Entry
from bus.errors import CodecError, LogError
from bus.events import PolicyAttached
from bus.host import decide_all, rebuild_in_order
from bus.redis_snapshots import RedisSnapshots
from bus.requests import Outcome
from bus.snapshot import freeze, thaw, thaw_into
from bus.snapshot_table import Snapshot, SnapshotTable, core_code
from services.controller.core import ControllerCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore
from tests.replay.recordings import execute, save, simulated
from tests.simulation.check import policy_core
from tests.simulation.plans import POLICIES

SEEDS = range(24)
PLACES = 4
"""Positions of one log at which each core is frozen."""


def fresh_cores() -> list[Core]:
    """Every core, and one for each policy, that of a test among them, whose class lies outside our packages."""
    attached = [PolicyAttached(name=name, params={}, mode="active", code="") for name in POLICIES]
    return [TrainerCore(), RollouterCore(), ControllerCore(), *(policy_core(event) for event in attached)]


@cache
def log_of(seed: int) -> list[Entry]:
    return simulated(seed).store.entries


def fold(core: Core, entries: list[Entry], after: int, to: int) -> None:
    """Takes a core from one position to another, all its decisions on what lies between with it, wherever they stand."""
    decisions = [entry for entry in entries if entry.derived and entry.source == core.source and after < entry.cause <= to]
    rebuild_in_order(core, entries[after:to], sorted(decisions, key=lambda entry: entry.cause), after)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_thawed_core_goes_on_as_the_one_that_was_frozen(seed: int) -> None:
    entries, random = log_of(seed), Random(seed)
    places = sorted(random.randint(1, len(entries)) for _ in range(PLACES))
    for number, core in enumerate(fresh_cores()):
        frozen, at = [], 0
        for place in places:
            fold(core, entries, at, place)
            frozen.append((place, freeze(core)))
            at = place
        fold(core, entries, at, len(entries))
        for place, data in frozen:
            thawed = thaw(data, fresh_cores()[number])
            assert freeze(thawed) == data
            fold(thawed, entries, place, len(entries))
            assert freeze(thawed) == freeze(core), f"{core.source} from {place} on"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_thawed_core_decides_what_the_frozen_one_does_and_shares_nothing_with_it(seed: int) -> None:
    entries = log_of(seed)
    place = Random(seed).randint(1, len(entries))
    for number, core in enumerate(fresh_cores()):
        fold(core, entries, 0, place)
        data = freeze(core)
        thawed = thaw(data, fresh_cores()[number])
        assert thawed.outstanding() == core.outstanding()
        assert thawed.deadlines() == core.deadlines()
        decided = decide_all(thawed, place)
        assert freeze(core) == data, "deciding with the copy has changed the original"
        assert decide_all(core, place) == decided


def test_what_several_folds_share_is_one_object_again() -> None:
    core = RollouterCore()
    fold(core, log_of(3), 0, 60)
    thawed = thaw(freeze(core), RollouterCore())
    before = thawed.routes.free_slots()
    for requests in thawed.requests.open.values():
        requests.clear()
    assert thawed.routes.free_slots() >= before
    assert sum(thawed.requests.load(name) for name in thawed.routes.by_name) == 0


@dataclass
class Everything:
    """All that a snapshot can hold."""

    numbers: dict[tuple[str, int], float] = field(default_factory=dict)
    queue: deque[int] = field(default_factory=lambda: deque((1, 2, 3), maxlen=3))
    nested: list[object] = field(default_factory=list)
    outcome: object = None


def test_all_kinds_of_plain_data_come_back_with_what_refers_to_itself() -> None:
    whole = Everything({("a", 1): 0.5}, nested=[None, True, "s", b"b", (1, (2,)), 1 << 60])
    whole.nested.append(whole.nested)
    whole.outcome = Outcome(log_of(0)[0].event, None)  # type: ignore[arg-type]
    thawed = thaw(freeze(whole), Everything())
    assert thawed.numbers == whole.numbers
    assert thawed.queue == whole.queue
    assert thawed.queue.maxlen == 3
    assert thawed.nested[:6] == whole.nested[:6]
    assert thawed.nested[6] is thawed.nested
    assert thawed.outcome == whole.outcome
    assert isinstance(thawed.outcome, Outcome)


@pytest.mark.parametrize("state", [{1, 2}, Random(1), len, freeze, object()])
def test_state_that_is_no_plain_data_is_refused_with_the_attribute_that_holds_it(state: object) -> None:
    with pytest.raises(CodecError, match=r"^nested is a .*: a snapshot can hold plain data only"):
        freeze(Everything(nested=[state]))


def test_a_class_outside_our_packages_is_not_imported() -> None:
    data = msgpack.packb([[["subprocess:Popen", ["args"]]], [5, 0, "true"]])
    with pytest.raises(CodecError, match="subprocess:Popen lies neither below bus, policies, services"):
        thaw(bytes(data), Everything())


def test_a_broken_snapshot_is_an_error_of_ours_and_changes_nothing() -> None:
    core = TrainerCore()
    fold(core, log_of(3), 0, 60)
    data = freeze(core)
    for cut in range(0, len(data), 37):
        with pytest.raises(CodecError):
            thaw(data[:cut], TrainerCore())
    fresh = ControllerCore()
    before = freeze(fresh)
    with pytest.raises(CodecError, match="it is of a TrainerCore, a ControllerCore is expected"):
        thaw_into(fresh, data)
    assert freeze(fresh) == before


# --- where they are kept -----------------------------------------------------------------------------------------------------------


def snapshot(position: int, source: str = "trainer", code: str = "c1") -> Snapshot:
    return Snapshot(source, code, position, position + 2, f"chain{position}", b"core" * position, {"StepDone": position})


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return save(tmp_path / "run", simulated(0).store)


def test_the_table_gives_the_newest_one_of_a_source_and_code_at_or_before_a_position(recording: Path) -> None:
    with SnapshotTable.open(recording) as table:
        table.put([snapshot(10), snapshot(20), snapshot(15, code="c2"), snapshot(17, source="policy")])
        assert [table.position_before("trainer", "c1", position) for position in (9, 10, 19, 99)] == [None, 10, 10, 20]
        assert table.get("trainer", "c1", 20) == snapshot(20)
        table.put([snapshot(20)])  # again: it replaces the first


def test_a_damaged_one_is_an_error_of_ours(recording: Path) -> None:
    with SnapshotTable.open(recording) as table:
        table.put([snapshot(10)])
        execute(recording, "UPDATE snapshots SET state = x'00ff'")
        with pytest.raises(CodecError, match="the snapshot of trainer at 10 cannot be read"):
            table.get("trainer", "c1", 10)
        execute(recording, "DELETE FROM snapshots")
        with pytest.raises(CodecError, match="not there"):
            table.get("trainer", "c1", 10)


def test_a_file_that_is_no_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(LogError, match="damaged, or no recording"):
        SnapshotTable.open(tmp_path)


def test_the_server_keeps_the_newest_one_of_each_source(server_url: str, run: str) -> None:
    snapshots = RedisSnapshots(server_url, run)
    assert snapshots.get("trainer") is None
    assert snapshots.sizes() == {}
    for each in (snapshot(10), snapshot(20), snapshot(7, source="policy")):
        snapshots.put(each)
    assert snapshots.get("trainer") == snapshot(20)
    assert snapshots.get("policy") == snapshot(7, source="policy")
    assert {source: size >= len(snapshot(20).pack()) for source, size in snapshots.sizes().items()} == {"trainer": True, "policy": True}
    snapshots.close()


def test_a_policy_with_other_settings_has_snapshots_of_its_own() -> None:
    codes = {
        core_code("c", PolicyAttached(name=name, params={"deactivate_ratio": ratio}, mode=mode, code="c"))
        for name in ("default", "fixed_ratio")
        for ratio in (0.3, 0.6)
        for mode in ("active", "shadow")
    }
    assert len(codes) == 8
    assert core_code("c") == "c"
