"""What is left out for speed changes nothing: folds that are not told of requests and answers, cores that are not asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bus.core import Core
from bus.entry import Entry
from bus.events import PolicyAttached
from bus.host import decide_all, own
from bus.requests import ANSWERING
from bus.snapshot import freeze
from replay.subjects import subjects
from services.controller.core import ControllerCore
from services.policy.core import PolicyCore
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore
from tests.simulation.restless import make_policy
from tests.simulation.world import World

SEEDS = (5, 14, 41)
LEAVE_EARLY = (
    "services.controller.core", "services.trainer.core", "services.rollouter.core", "services.rollouter.evaluation",
    "services.policy.core", "policies.view",
)  # fmt: skip
CORES: Sequence[Callable[[], Core]] = (
    TrainerCore, RollouterCore, ControllerCore,
    lambda: PolicyCore(make_policy("default", {})), lambda: PolicyCore(make_policy("default", {}), "shadow"),
)  # fmt: skip


def log(seed: int) -> list[Entry]:
    world = World(seed)
    world.run()
    assert any(type(entry.event) in ANSWERING for entry in world.store.entries)
    return world.store.entries


def led(core: Core, entries: Sequence[Entry]) -> list[tuple[bytes, bool]]:
    """The state after each entry, and whether there was nothing to decide."""
    found = []
    answers: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.derived and entry.source == core.source:
            answers.setdefault(entry.cause, []).append(entry)
    for entry in entries:
        if not (entry.derived and entry.source == core.source):
            core.apply(entry)
        for answer in answers.get(entry.position, ()):
            core.apply(own(core, answer.event, entry.position))
        found.append((freeze(core), core.decide() is None))
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", CORES, ids=["trainer", "rollouter", "controller", "policy", "shadow"])
def test_leaving_early_at_requests_and_answers_gives_the_same_states(
    seed: int, make: Callable[[], Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = log(seed)
    early = led(make(), entries)
    for module in LEAVE_EARLY:
        monkeypatch.setattr(f"{module}.ANSWERING", frozenset())
    assert led(make(), entries) == early


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_subject_ignores_changes_nothing_in_its_core(seed: int) -> None:
    entries = log(seed)
    attached = PolicyAttached(name="default", params={}, mode="shadow", code="")
    for subject in subjects([("policy:default", attached)]):
        states = [state for state, _ in led(subject.make(attached), entries)]
        for index, entry in enumerate(entries):
            if type(entry.event) in subject.ignores and not any(e.derived and e.cause == entry.position for e in entries):
                assert states[index] == states[index - 1], f"{subject.source} looks at {entry.event.kind}"


@pytest.mark.parametrize("make", CORES[:3], ids=["trainer", "rollouter", "controller"])
def test_a_core_that_had_nothing_to_decide_has_nothing_when_its_own_decision_comes_back(make: Callable[[], Core]) -> None:
    """So the host need not ask it then: it asks only when something was applied, or the bound of decisions was reached."""
    core = make()
    entries = log(14)
    silent = [nothing for _, nothing in led(core, entries)]
    ours = [index for index, entry in enumerate(entries) if entry.derived and entry.source == core.source]
    assert ours
    again = [index for index in ours if silent[index - 1] and not any(entry.cause == index + 1 for entry in entries if entry.derived)]
    assert all(silent[index] for index in again)
    assert not silent[-1] or not decide_all(core, len(entries))
