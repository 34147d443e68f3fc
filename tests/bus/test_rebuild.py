"""A state is rebuilt from a log of any length as it is from a list: own decisions right after their cause, and not all held in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bus.core import Core
from bus.entry import Entry
from bus.errors import CoreError
from bus.events import WaitSamples
from bus.host import rebuild, rebuild_in_order
from bus.snapshot import freeze
from services.controller.core import ControllerCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore
from tests.simulation.world import World

CORES = (TrainerCore, RollouterCore, ControllerCore)


def decisions_of(core: Core, entries: list[Entry]) -> Iterator[Entry]:
    return (entry for entry in entries if entry.derived and entry.source == core.source)


def test_simulated_logs_with_crashes_are_rebuilt_to_the_same_state_as_a_stream_and_as_a_list() -> None:
    for seed in range(40):
        world = World(seed)
        world.run()
        entries = world.store.entries
        for make in CORES:
            whole, streamed = make(), make()
            assert rebuild(whole, entries) == rebuild_in_order(streamed, iter(entries), decisions_of(streamed, entries)) == len(entries)
            assert freeze(streamed) == freeze(whole)


class Lookout:
    """Sees to it that no more than one decision is waited with."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._at = 0

    def passing(self) -> Iterator[Entry]:
        for entry in self._entries:
            self._at = entry.position
            yield entry

    def pulled(self, decisions: Iterator[Entry]) -> Iterator[Entry]:
        for entry in decisions:
            yield entry
            assert entry.cause <= self._at, "the next decision was asked for before this one was applied"


def test_only_one_decision_is_held_ahead_of_its_cause() -> None:
    world = World(3)
    world.run()
    for make in CORES:
        core, lookout = make(), Lookout(world.store.entries)
        rebuild_in_order(core, lookout.passing(), lookout.pulled(decisions_of(core, world.store.entries)))


def decision(position: int, cause: int) -> Entry:
    return Entry(position, "trainer", 1, True, cause, 0, "", WaitSamples(step=1, need=1, have=0))


class Listener:
    """Notes what it is given."""

    source = "trainer"

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []

    def apply(self, entry: Entry) -> None:
        self.heard.append((entry.position, entry.cause))

    def decide(self) -> None:
        return None

    def outstanding(self) -> tuple[()]:
        return ()

    def deadlines(self) -> tuple[()]:
        return ()


def test_behind_a_snapshot_decisions_on_what_it_holds_are_left_out() -> None:
    entries = [Entry(position, "x", 1, False, 0, 0, "", WaitSamples(step=1, need=1, have=0)) for position in (11, 12)]
    entries += [decision(13, cause=9), decision(14, cause=10), decision(15, cause=11)]
    core = Listener()
    assert rebuild_in_order(core, entries, [entry for entry in entries if entry.derived], after=10) == 15
    assert core.heard == [(11, 0), (0, 11), (12, 0)]


def test_a_log_whose_decisions_are_not_in_the_order_of_their_causes_is_refused_where_it_cannot_be_sorted() -> None:
    facts = [Entry(position, "x", 1, False, 0, 0, "", WaitSamples(step=1, need=1, have=0)) for position in (1, 2)]
    entries = [*facts, decision(3, cause=2), decision(4, cause=1)]
    with pytest.raises(CoreError, match="entry 4, on entry 1, but had decided on a later one"):
        rebuild_in_order(Listener(), entries, entries[2:])
    core = Listener()
    rebuild(core, entries)
    assert core.heard == [(1, 0), (0, 1), (2, 0), (0, 2)]
