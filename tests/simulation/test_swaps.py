"""Swaps, shadows, promotions and candidates that die or hang, at random places; what must hold of them is in `check_policies`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from bus.events import DeadlineMissed, PolicyAttached, PolicyDetached, PolicyRefused, PolicyRequested, SwitchRejected, SwitchRequested
from bus.log import WHATEVER
from services.launcher.keeper import Keeper
from services.policy.newcomer import Newcomer
from tests.cases.runs import of_kind, small_plan
from tests.simulation.check import run_world
from tests.simulation.plans import Faults
from tests.simulation.world import World

SEEDS = 25
SWAPS = Faults(swap_policy=0.03)
CRASHES = Faults(swap_policy=0.03, crashes=8, crash_chance=0.02)


def swapped(seed: int, faults: Faults = SWAPS) -> World:
    return run_world(World(seed, small_plan(num_prompts=None, total_steps=8, hybrid=("h0", "h1")), replace(faults)))


def test_without_other_faults_every_boundary_has_its_one_verdict_however_often_the_policy_is_swapped() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = swapped(seed)
        entries = world.store.entries
        assert of_kind(entries, DeadlineMissed) == []
        assert "late" not in [event.reason for event in of_kind(entries, SwitchRejected) if event.swing == 0 and answers(entries, event)]
        answered = Counter(event.answers for event in of_kind(entries, SwitchRequested) if event.answers is not None)
        assert set(answered.values()) == {1}
        seen.update(event.mode for event in of_kind(entries, PolicyAttached) if event.request)
        seen.update(event.action for event in of_kind(entries, PolicyRequested))
        seen.update(event.stage for event in of_kind(entries, PolicyRefused))
        seen.update(event.reason for event in of_kind(entries, PolicyDetached))
        seen["overtaken"] += world.overtaken
    for what in ("active", "shadow", "promote", "rollback", "detach", "load", "promoted", "asked to end", "overtaken"):
        assert seen[what], f"no seed reaches {what}: {seen}"


def answers(entries: list, rejected: SwitchRejected) -> bool:  # type: ignore[type-arg]
    """What was rejected answered a boundary."""
    event = entries[rejected.request - 1].event
    return isinstance(event, SwitchRequested) and event.answers is not None


def test_candidates_that_die_or_hang_and_policies_that_crash_leave_exactly_one_that_counts() -> None:
    refused = 0
    for seed in range(SEEDS // 2):
        world = swapped(seed, Faults(swap_policy=0.03, crashes=8, crash_chance=0.02, engine_hangs=0.1, deadline=0.005))
        refused += len(of_kind(world.store.entries, PolicyRefused))
    assert refused


# --- a simulation that cannot find a bug would prove nothing ----------------------------------------------------------------------


def forget_what_is_held(patch: pytest.MonkeyPatch) -> None:
    """A newcomer attaches without the newest entries."""
    patch.setattr(Newcomer, "finish", lambda self: None)


def believe_that_it_was_over(patch: pytest.MonkeyPatch) -> None:
    """A decision for an entry that was taken for settled is left out."""
    original = vars(Newcomer)["_take_decision"]
    patch.setattr(Newcomer, "_take_decision", lambda self, entry: None if entry.cause <= self._settled else original(self, entry))


def restart_whatever_attached(patch: pytest.MonkeyPatch) -> None:
    """The old choice is started again while a candidate is on its way, and attaches after it."""
    patch.setattr(Keeper, "_newest_epoch", lambda self: WHATEVER)


@pytest.mark.parametrize("plant", [forget_what_is_held, believe_that_it_was_over, restart_whatever_attached], ids=lambda p: p.__name__)
def test_a_planted_bug_of_a_swap_is_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)  # type: ignore[operator]
    assert any(failed(seed, faults) for seed in range(100) for faults in (SWAPS, CRASHES)), plant.__doc__


def failed(seed: int, faults: Faults) -> bool:
    try:
        swapped(seed, faults)
    except Exception:  # noqa: BLE001  (any complaint counts)
        return True
    return False
