"""Policies and shadows in simulated runs full of swaps: the monitor's folds agree with those by which the run's policies are kept."""

from __future__ import annotations

import json
from math import isfinite

import pytest

from bus.events import PolicyAttached, ShadowVerdict, SwitchRequested
from services.monitor.summary import Summary
from services.policy.roster import Roster
from tests.simulation.plans import Faults
from tests.simulation.world import World

SWAPS = (Faults(swap_policy=0.03), Faults(swap_policy=0.03, crashes=8, crash_chance=0.02, deadline=0.005))


@pytest.mark.parametrize("seed", range(16))
def test_who_decides_and_who_watches_is_what_the_keeper_of_policies_knows(seed: int) -> None:
    world = World(seed, faults=SWAPS[seed % 2])
    world.run()
    entries = world.store.entries
    summary, roster = Summary(), Roster()
    for entry in entries:
        over = summary.ended is not None
        summary.apply(entry)
        if not over:
            roster.apply(entry)
        active, history = roster.active, summary.policies
        assert (active is None) == (history.active is None)
        if active is not None and history.active is not None:
            assert (active.event.name, active.epoch) == (history.active.chosen.name, history.active.epoch), entry
        assert set(roster.shadows) == {shadow.label for shadow in history.shadows.values()}, entry
    attached = [entry.event for entry in entries if isinstance(entry.event, PolicyAttached) and entry.event.mode == "active"]
    assert history.num_stretches + sum(stretch.restarts for stretch in history.stretches) == len(attached)
    assert [stretch.until for stretch in history.stretches][:-1] == [stretch.position for stretch in history.stretches][1:]


@pytest.mark.parametrize("seed", range(6))
def test_comparisons_count_no_more_than_was_said_and_estimate_no_more_than_differs(seed: int) -> None:
    world = World(seed, faults=SWAPS[0])
    world.run()
    summary = Summary()
    for entry in world.store.entries:
        summary.apply(entry)
    said = {(entry.source, entry.event.answers) for entry in world.store.entries if isinstance(entry.event, ShadowVerdict)}
    answered = {entry.event.answers for entry in world.store.entries if isinstance(entry.event, SwitchRequested)}
    comparisons = summary.shadows.all.values()
    assert sum(comparison.compared for comparison in comparisons) <= len({key for key in said if key[1] in answered})
    for comparison in comparisons:
        assert comparison.estimated <= comparison.differ
        assert comparison.lend_instead + comparison.keep_instead <= comparison.differ
        assert isfinite(comparison.saved_s)
    json.dumps(summary.as_dict(), allow_nan=False)
