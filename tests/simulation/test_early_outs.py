"""What is left out for speed would have changed nothing: folds that do not look at requests and answers, cores that are not asked again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bus.books import Books
from bus.core import Core
from bus.entry import Entry
from bus.evaluations import Evaluations
from bus.host import decide_all, own
from bus.requests import ANSWERING
from bus.snapshot import freeze
from policies.swings import Swings
from services.controller.core import ControllerCore
from services.controller.expected import Expected
from services.controller.replicas import Replicas
from services.rollouter.core import RollouterCore
from services.trainer.core import TrainerCore
from tests.simulation.world import World

SEEDS = (5, 14, 41)


class BooksOfEntries(Books):
    """Takes entries, as the other folds do."""

    def take(self, entry: Entry) -> None:
        self.apply(entry.event)


def log(seed: int) -> list[Entry]:
    world = World(seed)
    world.run()
    assert any(type(entry.event) in ANSWERING for entry in world.store.entries)
    return world.store.entries


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_and_answers_change_no_fold_that_is_not_told_of_them(seed: int) -> None:
    books, evaluations, replicas, swings, expected = BooksOfEntries(), Evaluations(), Replicas(), Swings(), Expected()
    folds: list[tuple[object, Callable[[Entry], None]]] = [
        (books, books.take),
        (evaluations, evaluations.apply),
        (replicas, replicas.apply),
        (swings, swings.apply),
        (expected, expected.apply),
    ]
    for entry in log(seed):
        for fold, take in folds:
            before = vars(fold).copy() if type(entry.event) in ANSWERING else None
            frozen = [freeze(value) for value in before.values()] if before is not None else []
            take(entry)
            if before is not None:
                assert vars(fold).keys() == before.keys()
                assert [freeze(value) for value in vars(fold).values()] == frozen, f"{type(fold).__name__} looks at {entry.event.kind}"


@pytest.mark.parametrize("core", [TrainerCore, RollouterCore, ControllerCore], ids=lambda core: core.__name__)
def test_a_core_that_had_nothing_to_decide_has_nothing_when_its_own_decision_comes_back(core: Callable[[], Core]) -> None:
    """So the host need not ask it then: it asks only when something was applied, or the bound of decisions was reached."""
    follower, silent = core(), True
    answers: dict[int, list[Entry]] = {}
    entries = log(14)
    for entry in entries:
        if entry.derived and entry.source == follower.source:
            answers.setdefault(entry.cause, []).append(entry)
    for entry in entries:
        if entry.derived and entry.source == follower.source:
            assert not silent or follower.decide() is None
        else:
            follower.apply(entry)
        for answer in answers.get(entry.position, ()):
            follower.apply(own(follower, answer.event, entry.position))
        silent = follower.decide() is None
        assert not silent or not decide_all(follower, entry.position)
