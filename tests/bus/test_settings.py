"""The fold of the settings: what counts, what does not, and that all who read the log come to the same."""

from __future__ import annotations

import pytest

from bus.books import Books
from bus.entry import Entry
from bus.evaluations import Evaluations
from bus.events import Deadlines, RunPlanned, SettingChanged, Value, WeightsPublished
from bus.settings import DEADLINES, NAMES, Beside, Settings
from bus.snapshot import freeze, thaw
from tests.bus.factories import plan


def folded(*changes: tuple[str, Value], planned: RunPlanned | None = None) -> Settings:
    settings = Settings()
    settings.apply(planned or plan("r"))
    for name, value in changes:
        settings.apply(SettingChanged(name=name, value=value))
    return settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("staleness_threshold", 2.0), ("staleness_threshold", 0), ("max_version_lag", 3), ("max_version_lag", None), ("eval_n", 2),
        ("enable_rebalance", False), ("partial_rollout", False), ("checkpoint_every_versions", 5), ("max_lent_s", 1.5),
        ("eval_every_versions", 4), ("max_attempts", 7), ("on_redo_diverged", "republish"), ("use_dynamic_resource_scheduling", False),
    ],
)  # fmt: skip
def test_a_change_is_in_the_plan_from_then_on_and_in_nothing_else(name: str, value: Value) -> None:
    settings, before = folded((name, value)), plan("r")
    assert settings.plan == before.model_copy(update={name: value})
    assert settings.changed == {name: value}
    assert settings.beside == Beside()


def test_each_deadline_can_change() -> None:
    for name in Deadlines.model_fields:
        settings = folded((DEADLINES + name, 7.5))
        assert settings.plan is not None
        assert settings.plan.deadlines == Deadlines().model_copy(update={name: 7.5})


def test_what_only_shells_read_is_beside_the_plan() -> None:
    settings = folded(("filter_groups", True), ("memory_pause_at", 0.5))
    assert settings.plan == plan("r")
    assert settings.beside == Beside(filter_groups=True, memory_pause_at=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("staleness_threshold", -0.1), ("staleness_threshold", "much"), ("staleness_threshold", None),
        ("staleness_threshold", float("inf")), ("staleness_threshold", float("nan")), ("max_version_lag", -1), ("max_version_lag", 0.5),
        ("on_version_lag", "never"), ("checkpoint_every_versions", 0), ("max_lent_s", 0.0), ("memory_pause_at", 1.5),
        ("deadlines.wake_s", 0.0), ("deadlines.no_such_s", 1.0), ("deadlines.", 1.0), ("wake_s", 1.0),
        ("total_steps", 9), ("seed", 3), ("deadlines", 1.0), ("rollout_n", 2), ("", 1), ("no_such_setting", 1),
    ],
)  # fmt: skip
def test_what_is_outside_the_limits_or_cannot_change_changes_nothing(name: str, value: Value) -> None:
    settings = folded((name, value))
    assert settings.plan == plan("r")
    assert settings.beside == Beside()
    assert settings.changed == {}


def test_a_combination_that_cannot_hold_changes_nothing() -> None:
    keeping = plan("r").model_copy(update={"weight_update_mode": "keep"})
    assert folded(("partial_rollout", False), planned=keeping).plan == keeping
    waiting = plan("r").model_copy(update={"max_version_lag": 1, "on_version_lag": "wait"})
    settings = folded(("staleness_threshold", 1.5), ("max_version_lag", 0), planned=waiting)
    assert settings.plan == waiting
    settings = folded(("max_version_lag", 2), ("staleness_threshold", 1.5), planned=waiting)
    assert settings.changed == {"max_version_lag": 2, "staleness_threshold": 1.5}


def test_what_two_operators_say_at_once_is_the_same_for_every_reader() -> None:
    """Each of the two would be taken alone; the one that comes second does not fit any more, whoever reads it."""
    said: list[tuple[str, Value]] = [("max_version_lag", 1), ("on_version_lag", "wait"), ("staleness_threshold", 1.5)]
    assert folded(*said).changed == {"max_version_lag": 1, "on_version_lag": "wait"}
    assert folded(*said[::-1]).changed == {"staleness_threshold": 1.5, "on_version_lag": "wait"}


def test_a_fold_that_is_held_twice_is_fed_twice_and_comes_to_the_same() -> None:
    books = Books()
    evaluations = Evaluations(books.settings)
    for position, event in enumerate((plan("r"), SettingChanged(name="eval_every_versions", value=1)), 1):
        books.apply(event)
        evaluations.apply(Entry(position, "operator", 0, False, 0, 0, "", event))
    assert evaluations.plan is books.plan
    assert books.plan is not None
    assert books.plan.eval_every_versions == 1


def test_the_newest_of_several_changes_counts_and_the_books_know_it() -> None:
    books = Books()
    books.apply(plan("r"))
    limits = [books.limit]
    for value in (2.0, -1.0, 0.0):
        books.apply(SettingChanged(name="staleness_threshold", value=value))
        limits.append(books.limit)
    assert limits == [24, 48, 48, 16]
    assert books.staleness_threshold == 0.0


def test_a_snapshot_holds_what_was_changed() -> None:
    books = Books()
    for event in (plan("r"), SettingChanged(name="max_lent_s", value=3.0), SettingChanged(name="filter_groups", value=True)):
        books.apply(event)
    again = thaw(freeze(books), Books())
    assert again.plan is again.settings.plan
    assert (again.settings.plan, again.settings.beside, again.settings.changed) == (
        books.plan,
        books.settings.beside,
        books.settings.changed,
    )


def published(version: int) -> WeightsPublished:
    return WeightsPublished(version=version, revision=0, transport="shm", uri="u", digest="d", num_bytes=1, seconds=0.0)


def test_an_evaluation_becomes_due_with_the_publication_after_the_change() -> None:
    evaluations = Evaluations()
    validated = plan("r").model_copy(update={"num_validation": 4})
    every_second = SettingChanged(name="eval_every_versions", value=2)
    published = [
        WeightsPublished(version=version, revision=0, transport="shm", uri="u", digest="d", num_bytes=1, seconds=0.0)
        for version in range(5)
    ]
    for position, event in enumerate((validated, published[0], published[2], every_second, published[3], published[4]), 1):
        evaluations.apply(Entry(position, "any", 1, False, 0, 0, "", event))
    assert evaluations.current is not None
    assert evaluations.current.version == 4
    assert evaluations.waiting is None


def test_every_name_is_one() -> None:
    assert len(set(NAMES)) == len(NAMES)
