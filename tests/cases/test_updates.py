"""C-18 and what else holds of answers in flight when replicas take new weights, in whole runs of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from bus.entry import Entry
from bus.events import (
    EvalDone,
    EvalRequested,
    GenerationFinished,
    GenerationRequested,
    RunEnded,
    RunPlanned,
    SampleDropped,
    SampleReady,
    WeightUpdateRequested,
)
from tests.cases.runs import of_kind, run_plan, small_plan
from tests.cases.test_staleness import aging_plan, lags
from tests.simulation.plans import Faults

SLOW = {f"{sample}.{answer}": until for sample, until in ((1, 170), (5, 200), (9, 230)) for answer in range(2)}
"""Answers that live through several updates -> entries in the log before they end."""


def run_in(mode: Literal["abort", "keep"], seed: int) -> list[Entry]:
    plan = small_plan(
        total_steps=10,
        staleness_threshold=1.0,
        enable_rebalance=False,
        hybrid=(),
        standalone=("s0", "s1"),
        weight_update_mode=mode,
        policy="static_fully_async",
    )
    return run_plan(plan, seed, Faults(slow=dict(SLOW)))


def attempts(entries: Sequence[Entry]) -> int:
    return len(of_kind(entries, GenerationRequested))


@pytest.mark.parametrize("seed", range(3))
def test_c18_kept_answers_are_not_asked_for_again_and_their_samples_are_as_old_as_their_oldest_token(seed: int) -> None:
    aborting, keeping = run_in("abort", seed), run_in("keep", seed)
    assert {event.outcome for event in of_kind(aborting, GenerationFinished)} >= {"aborted"}
    ended = of_kind(keeping, GenerationFinished)
    assert {event.outcome for event in ended} <= {"stop", "length"}
    assert attempts(keeping) == len({(event.sample, event.answer) for event in of_kind(keeping, GenerationRequested)}) < attempts(aborting)
    versions = {event.request: [version for version, _ in event.version_spans] for event in ended}
    assert max(map(len, versions.values())) >= 3, "no answer lived through two updates"
    assert all(found == sorted(found) for found in versions.values())
    for ready in of_kind(keeping, SampleReady):
        found = versions[f"{ready.sample}.0"] + versions[f"{ready.sample}.1"]
        assert (ready.oldest_version, ready.newest_version) == (min(found), max(found))


@pytest.mark.parametrize("seed", range(4))
def test_the_version_lag_is_kept_with_answers_of_several_versions(seed: int) -> None:
    plan = aging_plan(max_version_lag=0, weight_update_mode="keep")
    entries = run_plan(plan, seed, Faults(crashes=3, crash_chance=0.02, engine_fails=0.1))
    assert any(drop.reason == "stale" for drop in of_kind(entries, SampleDropped))
    assert max(lags(entries)) == 0
    waiting = plan.model_copy(update={"max_version_lag": 1, "on_version_lag": "wait"})
    entries = run_plan(waiting, seed, Faults(crashes=3, crash_chance=0.02))
    assert not of_kind(entries, SampleDropped)
    assert max(lags(entries)) <= 1
    assert of_kind(entries, RunEnded)[0].reason == "completed"


def modes_of(entries: Sequence[Entry], plan: RunPlanned) -> set[tuple[str, str]]:
    """(what for, mode) of every update that was asked for."""
    found, pinned = set[tuple[str, str]](), ""
    for entry in entries:
        match entry.event:
            case EvalRequested(replica=replica):
                pinned = replica
            case EvalDone():
                pinned = ""
            case WeightUpdateRequested(replica=replica, mode=mode):
                found.add(("hybrid" if replica in plan.hybrid else "evaluation" if replica == pinned else "standalone", mode))
            case _:
                pass
    return found


def test_what_a_replica_has_in_flight_when_it_takes_weights_to_evaluate_them_is_not_kept() -> None:
    plan = small_plan(weight_update_mode="keep", num_validation=2, eval_every_versions=1, standalone=("s0", "s1"))
    runs = [run_plan(plan, seed, Faults(crashes=4, crash_chance=0.03)) for seed in range(4)]
    found = {found for entries in runs for found in modes_of(entries, plan)}
    assert found - {("hybrid", "abort")} == {("standalone", "keep"), ("evaluation", "abort")}
