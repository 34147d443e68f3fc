"""Settings that are changed on the live run, each in whole runs of the protocol: honoured from its entry on, and verified."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bus.entry import Entry
from bus.events import (
    AbortRequested,
    BatchFormed,
    BoundaryOpened,
    CheckpointSaved,
    DeadlineMissed,
    EvalDone,
    EvalScored,
    Event,
    GenerationFinished,
    GenerationRequested,
    RunEnded,
    RunPlanned,
    SampleDropped,
    SampleReady,
    SampleStarted,
    SettingChanged,
    StepDone,
    SwitchRejected,
    SwitchRequested,
    SwitchStarted,
    TrainGranted,
    Value,
    WeightsPublished,
)
from bus.settings import NAMES
from replay.invariants import Invariants
from tests.cases.runs import of_kind, positions, run_plan, small_plan
from tests.cases.test_staleness import lags
from tests.simulation.check import run_world
from tests.simulation.knobs import VALUES, Operator
from tests.simulation.plans import Faults
from tests.simulation.world import World


def run_with(plan: RunPlanned, after: dict[int, dict[str, Value]], seed: int = 0, **faults: object) -> tuple[list[Entry], list[Entry]]:
    """The log of a run, checked, up to the last change and from it on; `after`: step -> what is changed once it is done."""
    entries = run_plan(plan, seed, Faults(set_after=after, **faults))  # type: ignore[arg-type]
    at = positions(entries, SettingChanged)
    assert len(at) == sum(map(len, after.values())), "the run was over before all was changed"
    return entries[: at[-1]], entries[at[-1] :]


def most_outstanding(entries: Sequence[Entry], before: Sequence[Entry] = ()) -> int:
    """Samples in flight, ready, or used since the last publication, at most, whenever one is started in `entries`."""
    outstanding = used = most = 0
    for entry in (*before, *entries):
        match entry.event:
            case SampleStarted():
                outstanding += 1
                if entry.position > len(before):
                    most = max(most, outstanding + used)
            case SampleDropped():
                outstanding -= 1
            case BatchFormed():
                outstanding -= len(entry.event.samples)
                used += len(entry.event.samples)
            case WeightsPublished():
                used = 0
            case _:
                pass
    return most


@pytest.mark.parametrize("seed", range(2))
def test_a_higher_staleness_threshold_lets_more_samples_be_outstanding(seed: int) -> None:
    before, after = run_with(small_plan(total_steps=16, hybrid=(), staleness_threshold=0.0), {6: {"staleness_threshold": 2.0}}, seed)
    assert most_outstanding(before) == 4
    assert 4 < most_outstanding(after, before) <= 12


@pytest.mark.parametrize("seed", range(2))
def test_below_a_lowered_staleness_threshold_nothing_is_started_until_what_is_there_fits(seed: int) -> None:
    before, after = run_with(small_plan(total_steps=16, hybrid=(), staleness_threshold=2.0), {6: {"staleness_threshold": 0.0}}, seed)
    assert most_outstanding(before) > 4
    known = [entry for entry in after if entry.cause >= after[0].position or not isinstance(entry.event, SampleStarted)]
    late = [entry for entry in after if entry not in known]
    assert most_outstanding(known, [*before, *late]) <= 4
    assert of_kind(after, RunEnded)[0].reason == "completed"


def test_an_invariant_measures_a_start_by_the_limit_that_its_cause_knew() -> None:
    """Decided before the change was read, and appended after it: within the limit. Decided on a later entry: over it."""

    def broken(cause: int) -> list[str]:
        fold = Invariants()
        events: list[tuple[Event, int]] = [
            (small_plan(staleness_threshold=0.5), 0),
            *((SampleStarted(sample=sample, version=0), 1) for sample in range(5)),
            (SettingChanged(name="staleness_threshold", value=0.0), 0),
            (SampleStarted(sample=5, version=0), cause),
        ]
        said = [fold.apply(Entry(at, "x", 1, True, why, 0, "", event)) for at, (event, why) in enumerate(events, 1)]
        assert not any(said[:-1])
        return said[-1]

    assert broken(cause=6) == []
    assert broken(cause=7) == ["6 samples are outstanding, the staleness limit is 4"]


@pytest.mark.parametrize("seed", range(2))
def test_a_version_lag_that_is_set_drops_what_is_over_it_and_nothing_older_is_trained(seed: int) -> None:
    plan = small_plan(total_steps=20, staleness_threshold=1.0, policy="static_fully_async")
    before, after = run_with(plan, {8: {"max_version_lag": 0}}, seed)
    assert max(lags(before)) >= 1
    assert any(drop.reason == "stale" for drop in of_kind(after, SampleDropped))
    decided_after = {entry.event.step for entry in after if isinstance(entry.event, BatchFormed) and entry.cause >= after[0].position}
    batches = [entry.event.step for entry in (*before, *after) if isinstance(entry.event, BatchFormed)]
    by_step = [lag for step in batches for lag in [step] * 2]
    assert max(lag for step, lag in zip(by_step, lags([*before, *after]), strict=False) if step in decided_after) == 0


@pytest.mark.parametrize("seed", range(2))
def test_waiting_can_take_the_place_of_dropping(seed: int) -> None:
    plan = small_plan(total_steps=20, staleness_threshold=1.0, max_version_lag=1, policy="static_fully_async")
    before, after = run_with(plan, {4: {"on_version_lag": "wait"}, 10: {"max_version_lag": 2, "staleness_threshold": 2.0}}, seed)
    assert max(lags([*before, *after])) <= 2
    assert of_kind(after, RunEnded)[0].reason == "completed"


def test_no_boundary_is_asked_from_where_dynamic_scheduling_is_switched_off_and_they_are_again_from_where_it_is_on() -> None:
    plan = small_plan(total_steps=24, policy_params={"deactivate_ratio": 1.0})
    name = "use_dynamic_resource_scheduling"
    entries = run_plan(plan, faults=Faults(set_after={7: {name: False}, 15: {name: True}}))
    off, on = positions(entries, SettingChanged)
    asked = [entry for entry in entries if isinstance(entry.event, SwitchRequested) and entry.event.answers is not None]
    assert {entry.event.answers for entry in asked if entry.position < off}  # type: ignore[attr-defined]
    assert not [entry for entry in asked if off < entry.position < on and entry.cause > off]
    assert [entry for entry in asked if on < entry.position]
    static = [entry for entry in entries if isinstance(entry.event, TrainGranted) and entry.event.reason == "static"]
    assert {off < entry.position for entry in static} == {True}
    assert not [missed for missed in of_kind(entries, DeadlineMissed) if missed.key.startswith("verdict")]


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_boundary_that_is_open_when_the_switch_is_thrown_waits_for_nobody(value: bool, seed: int) -> None:
    """Even steps open one; whatever comes first, the policy's answer, the weights or the switch, the trainer goes on at once."""
    name = "use_dynamic_resource_scheduling"
    thrown: dict[int, dict[str, Value]] = {step: {name: value if step % 4 == 0 else not value} for step in range(0, 20, 2)}
    entries = run_plan(small_plan(total_steps=20, use_dynamic_resource_scheduling=not value), seed, Faults(set_after=thrown))
    assert not of_kind(entries, DeadlineMissed), "somebody waited for an answer that could not come"
    assert {rejected.reason for rejected in of_kind(entries, SwitchRejected)} <= {"late", "not_asked", "run_ended"}
    assert of_kind(entries, BoundaryOpened)


def test_nothing_is_moved_any_more_without_rebalancing() -> None:
    plan = small_plan(total_steps=30, hybrid=("h0", "h1"), rollout_n=4, max_running_requests=8, policy_params={"deactivate_ratio": 1.0})
    before, after = run_with(plan, {14: {"enable_rebalance": False}}, 3)
    moved = [entry for entry in (*before, *after) if isinstance(entry.event, AbortRequested) and entry.event.reason == "rebalance"]
    assert moved, "nothing was moved before"
    assert not [entry for entry in moved if entry.cause > after[0].position]


def test_answers_that_move_start_over_without_partial_rollout() -> None:
    plan = small_plan(total_steps=40, rollout_n=4, max_response_length=6, policy_params={"deactivate_ratio": 1.0})
    before, after = run_with(plan, {20: {"partial_rollout": False}}, 1)
    assert any(request.prefix is not None for request in of_kind(before, GenerationRequested))
    aborted = {
        (finished.request, finished.attempt)
        for finished in of_kind(after, GenerationFinished)
        if finished.outcome == "aborted" and finished.num_tokens
    }
    prefixed = {entry.event.sample for entry in before if isinstance(entry.event, GenerationRequested) and entry.event.prefix is not None}
    again = [
        request for request in of_kind(after, GenerationRequested)
        if (request.request, request.attempt - 1) in aborted and request.sample not in prefixed
    ]  # fmt: skip
    assert again
    assert all(request.prefix is None and request.prefix_tokens == 0 for request in again)


def test_an_answer_is_tried_as_often_as_it_may_be_by_now() -> None:
    plan = small_plan(total_steps=30, max_attempts=1, hybrid=())
    before, after = run_with(plan, {10: {"max_attempts": 5}}, answer_error=0.3)
    assert [drop for drop in of_kind(before, SampleDropped) if drop.reason == "failed"]
    errors = [finished for finished in of_kind(after, GenerationFinished) if finished.outcome == "error"]
    assert {error.attempt for error in errors} > {1}
    assert len([drop for drop in of_kind(after, SampleDropped) if drop.reason == "failed"]) < len(errors) / 4


def test_so_many_failures_in_a_row_as_may_be_by_now_end_the_run() -> None:
    _, after = run_with(small_plan(total_steps=10_000, hybrid=()), {4: {"max_failed_samples_in_a_row": 2}}, reward_fails=0.3)
    ended = of_kind(after, RunEnded)[0]
    assert ended.reason == "failed"
    assert ended.detail.startswith("2 samples failed one after the other")


def test_checkpoints_are_written_as_often_as_it_is_said_now() -> None:
    before, after = run_with(small_plan(total_steps=40), {10: {"checkpoint_every_versions": 4}})
    said_after = [saved.version for saved in of_kind(after, CheckpointSaved)]
    assert [saved.version for saved in of_kind(before, CheckpointSaved)][:3] == [1, 2, 3]
    assert all(version % 4 == 0 for version in said_after if version > 5)
    assert {8, 12, 16} <= set(said_after)


def test_versions_are_evaluated_as_often_and_with_as_many_answers_as_it_is_said_now() -> None:
    plan = small_plan(total_steps=32, num_validation=2, eval_every_versions=0)
    settings: dict[int, dict[str, Value]] = {7: {"eval_every_versions": 2, "eval_n": 2}, 17: {"eval_every_versions": 0}}
    before, after = run_with(plan, settings)
    entries = [*before, *after]
    assert [done.version for done in of_kind(entries, EvalDone)] == [4, 6, 8]
    assert {len(scored.rewards) for scored in of_kind(entries, EvalScored)} == {2}


def test_a_lend_lasts_as_long_as_it_may_by_now_when_its_verdict_names_no_time() -> None:
    plan = small_plan(total_steps=30, standalone=(), policy="default", max_lent_s=600.0)
    before, after = run_with(plan, {10: {"max_lent_s": 25.0}})

    def longest(entries: Sequence[Entry], since: int) -> set[float]:
        lends = [entry for entry in entries if isinstance(entry.event, SwitchStarted) and entry.event.target == "rollout"]
        return {entry.event.max_lent_s for entry in lends if entry.cause >= since}  # type: ignore[attr-defined]

    assert longest(before, 0) == {600.0}
    assert longest(after, after[0].position) == {25.0}


@pytest.mark.parametrize("seed", range(8))
def test_in_a_calm_run_no_verdict_is_missed_whatever_is_turned(seed: int) -> None:
    world = run_world(World(seed, small_plan(total_steps=12, num_validation=2, hybrid=("h0", "h1")), Faults(knobs=True)))
    assert not [missed for missed in of_kind(world.store.entries, DeadlineMissed) if missed.key.startswith("verdict")]
    assert of_kind(world.store.entries, RunEnded)[0].reason in ("completed", "failed")


def test_the_operator_of_the_simulation_turns_every_knob_there_is() -> None:
    turned = {change.name for seed in range(400) for operator in [Operator(seed)] for _ in range(100) for change in operator.turns()}
    assert turned == set(VALUES) == set(NAMES)


def test_the_change_is_said_between_ready_samples_and_steps() -> None:
    """The tests above mean something only if the changes come in the middle of a run."""
    before, after = run_with(small_plan(), {2: {"staleness_threshold": 1.0}})
    assert of_kind(before, StepDone)
    assert of_kind(after, SampleReady)
